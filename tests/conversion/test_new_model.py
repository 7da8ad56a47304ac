from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from common.artifacts import digest_file
from conversion import hf_to_nemo, new_model
from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.families import FAMILIES
from tests.conversion.folders import manifest_of
from tests.refusals import refused

SIZES = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--max-positions", "20"]


def make(tokenizer_dir: Path, output: Path, *flags: str) -> Path:
    assert new_model.main(["--tokenizer", str(tokenizer_dir), "--output", str(output), *SIZES, *flags]) == 0
    return output


def test_the_model_has_the_tokenizers_vocabulary_and_ids(tokenizer_dir: Path, tmp_path: Path) -> None:
    directory = make(tokenizer_dir, tmp_path / "new")
    config = json.loads((directory / "config.json").read_text())
    wanted = {
        "vocab_size": 280,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 128,
        "max_position_embeddings": 20,
    }
    assert {key: config[key] for key in wanted} == wanted
    assert HFCheckpoint.open(directory).tie_word_embeddings
    assert (directory / "tokenizer.json").read_bytes() == (tokenizer_dir / "tokenizer.json").read_bytes()
    manifest = manifest_of(directory)
    assert manifest.facts["vocab_size"] == 280 and manifest.facts["seed"] == 0
    _, notes = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(notes.values())


def test_the_seed_alone_decides(tokenizer_dir: Path, tmp_path: Path) -> None:
    digests = [
        digest_file(make(tokenizer_dir, tmp_path / str(number), "--seed", seed) / "model.safetensors") for number, seed in enumerate("112")
    ]
    assert digests[0] == digests[1] != digests[2]


def test_from_a_config_with_flags_on_top(tokenizer_dir: Path, tmp_path: Path) -> None:
    base = {"model_type": "opt", "num_hidden_layers": 7, "ffn_dim": 40, "dropout": 0.3, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps(base))
    directory = make(tokenizer_dir, tmp_path / "new", "--hf-config", str(tmp_path / "config.json"), "--untied")
    config = json.loads((directory / "config.json").read_text())
    assert (config["num_hidden_layers"], config["ffn_dim"], config["dropout"], config["vocab_size"]) == (2, 40, 0.3, 280)
    assert not HFCheckpoint.open(directory).tie_word_embeddings


@pytest.mark.some(5)
@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name != "opt" and FAMILIES[name].language_part is None])
def test_every_family(tokenizer_dir: Path, tmp_path: Path, model_type: str) -> None:
    """A new model converts, and transformers takes it for the family."""
    masked = FAMILIES[model_type].masked
    directory = make(tokenizer_dir, tmp_path / "new", "--model-type", model_type, *([] if masked else ["--num-key-value-heads", "2"]))
    config = json.loads((directory / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"], config["intermediate_size"]) == (model_type, 280, 128)
    if masked:
        assert config["max_position_embeddings"] == (20 if model_type == "bert" else 22), (
            "RoBERTa's begin behind two rows that stand for none"
        )
    else:
        assert config["num_key_value_heads"] == 2
    _, notes = (AutoModelForMaskedLM if masked else AutoModelForCausalLM).from_pretrained(directory, output_loading_info=True)
    assert not any(notes.values())
    hf_to_nemo.convert(directory, tmp_path / "nemo")


def test_misuse(tokenizer_dir: Path, tmp_path: Path) -> None:
    message = "the sizes of the new model are not complete: give --num-attention-heads, --max-positions, or a config.json with --hf-config"
    with refused(message):
        new_model.main(["--tokenizer", str(tokenizer_dir), "--output", str(tmp_path / "x"), *SIZES[:4]])
    with pytest.raises(ValueError, match=re.escape("a hidden size of 32 and 5 attention heads in 5 groups, which do not divide")):
        make(tokenizer_dir, tmp_path / "x", "--num-attention-heads", "5")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    message = f"--hf-config {tmp_path / 'config.json'} is the configuration of a model of type llama, not opt"
    with refused(message):
        make(tokenizer_dir, tmp_path / "x", "--hf-config", str(tmp_path / "config.json"), "--model-type", "opt")
    with pytest.raises(
        ValueError, match=re.escape("the new model is of the model type bloom, which is not supported; known are opt, llama")
    ):
        make(tokenizer_dir, tmp_path / "x", "--model-type", "bloom")
    with refused("--num-key-value-heads is given, but a model of the type opt has a key and a value for each head"):
        make(tokenizer_dir, tmp_path / "x", "--num-key-value-heads", "2")
    for name, text_only in (("gemma3", "gemma3_text"), ("mistral3", "ministral3")):
        message = f"a new model of the type {name} would have a vision tower that is not trained here; give --model-type {text_only}, a"
        with pytest.raises(ValueError, match=f"^{re.escape(message)} text-only model$"):
            make(tokenizer_dir, tmp_path / "x", "--model-type", name)
    assert not (tmp_path / "x").exists()
