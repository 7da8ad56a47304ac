"""`inspect` and `hf_to_nemo` by one set of rules: what the one refuses the other names in the same words, and nothing else."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.artifacts import write_manifest
from conversion import hf_to_nemo
from conversion.inspection import describe
from tests.conversion.folders import edit_json, edited_tensors
from tests.conversion.tiny_families import CASES, LLAMA3_ROPE, save_tiny_model


def says(**changes: Any) -> Callable[[Path], object]:
    """Change config.json; `...` takes a key out."""

    return lambda hf_dir: edit_json(hf_dir / "config.json", **changes)


def holds(**changes: Any) -> Callable[[Path], None]:
    """Change tensors, `{name with __ for .: tensor -> tensor or None}`."""

    def change(hf_dir: Path) -> None:
        with edited_tensors(hf_dir) as state:
            for name, made in changes.items():
                dotted = name.replace("__", ".")
                if (tensor := made(state.pop(dotted, None))) is not None:
                    state[dotted] = tensor

    return change


def writes(name: str, content: str | bytes) -> Callable[[Path], object]:
    return lambda hf_dir: (hf_dir / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _all(*changes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda hf_dir: [change(hf_dir) for change in changes]


def _tokenizer_of_another(hf_dir: Path) -> None:
    path = hf_dir / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["zibelka"] = 5000
    path.write_text(json.dumps(content))


def _linked(hf_dir: Path) -> None:
    shutil.move(hf_dir / "generation_config.json", hf_dir.parent / "elsewhere.json")
    (hf_dir / "generation_config.json").symlink_to(hf_dir.parent / "elsewhere.json")


def _edited(hf_dir: Path) -> None:
    write_manifest(hf_dir, stage="conversion.transfer", facts={})
    says(note="longer")(hf_dir)


def _cut(hf_dir: Path) -> None:
    path = hf_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def _lost_shard(hf_dir: Path) -> None:
    state = load_file(hf_dir / "model.safetensors")
    (hf_dir / "model.safetensors").unlink()
    places = {"weight_map": dict.fromkeys(state, "model-00001-of-00001.safetensors")}
    (hf_dir / "model.safetensors.index.json").write_text(json.dumps(places))


def _tiktoken(hf_dir: Path) -> None:
    lines = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (hf_dir / name).unlink(missing_ok=True)
    (hf_dir / "tokenizer.model").write_text("".join(lines))


def _one_id_for_two_tokens(hf_dir: Path) -> None:
    path = hf_dir / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["zibelka"] = max(content["model"]["vocab"].values())
    path.write_text(json.dumps(content))


BROKEN: dict[str, Callable[[Path], object]] = {
    "another activation": says(hidden_act="gelu"),
    "a part of each head rotates": says(partial_rotary_factor=0.5),
    "another type of rotations": says(rope_scaling={"rope_type": "longrope", "factor": 2.0}),
    "a number of rotations is missing": says(rope_scaling={key: value for key, value in LLAMA3_ROPE.items() if key != "low_freq_factor"}),
    "two types of rotations": says(rope_scaling={"type": "linear", "rope_type": "dynamic", "factor": 2.0}),
    "versions would differ": says(rope_parameters={"rope_type": "default", "rope_theta": 7.0}),
    "heads that do not divide": says(num_attention_heads=6),
    "a hidden size that heads do not divide": says(head_dim=None, num_attention_heads=5, num_key_value_heads=5),
    "a size in words": says(intermediate_size="many"),
    "a size below 0": says(hidden_size=-32),
    "a size that is no whole number": says(hidden_size=32.0),
    "a size without end": says(max_position_embeddings=float("inf")),
    "a size that is true": says(vocab_size=True),
    "layers that are true": says(num_hidden_layers=True),
    "a flag in place of a number": says(rms_norm_eps="x"),
    "a list in place of a number": says(num_attention_heads=[8]),
    "far too many layers": says(num_hidden_layers=10**9),
    "more layers than there are": says(num_hidden_layers=5),
    "fewer layers than there are": says(num_hidden_layers=3),
    "another width": says(intermediate_size=64),
    "another head size": says(head_dim=16),
    "fewer rows": says(vocab_size=200),
    "biases that are not there": says(attention_bias=True),
    "biases of a kind that is not supported": says(mlp_bias=True),
    "one id for two tokens": _one_id_for_two_tokens,
    "quantised": says(quantization_config={"quant_method": "gptq"}),
    "one matrix that is two": says(tie_word_embeddings=True),
    "a multimodal model of a known type": says(text_config={"model_type": "llama"}),
    "a configuration that is not valid JSON": writes("config.json", "{"),
    "a configuration that is a list": writes("config.json", "[]"),
    "a lost tensor": holds(model__layers__2__mlp__up_proj__weight=lambda _: None),
    "no head": holds(lm_head__weight=lambda _: None),
    "no embeddings": holds(model__embed_tokens__weight=lambda _: None),
    "a tensor too many": holds(model__layers__2__mlp__up_proj__bias=lambda _: torch.ones(48)),
    "a tensor of another shape": holds(model__norm__weight=lambda tensor: tensor[:-1]),
    "whole numbers": holds(model__norm__weight=lambda tensor: tensor.int()),
    "two types in what is fused": holds(model__layers__1__self_attn__k_proj__weight=lambda tensor: tensor.bfloat16()),
    "no weights": lambda hf_dir: (hf_dir / "model.safetensors").unlink(),
    "cut weights": _cut,
    "a lost shard": _lost_shard,
    "an edited file": _edited,
    "a tokenizer of another model": _tokenizer_of_another,
    "a tokenizer that is not valid JSON": writes("tokenizer.json", "{"),
    "a tokenizer's configuration alone": lambda hf_dir: (hf_dir / "tokenizer.json").unlink(),
    "a tokenizer of another library": _tiktoken,
    "a generation config that is not valid JSON": writes("generation_config.json", "{"),
    "a link out of the folder": _linked,
}


def _pickled(hf_dir: Path, *, old: bool) -> None:
    torch.save(load_file(hf_dir / "model.safetensors"), hf_dir / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    (hf_dir / "model.safetensors").unlink()


def _body_alone(hf_dir: Path) -> None:
    state = load_file(hf_dir / "model.safetensors")
    state = {name.removeprefix("model."): tensor for name, tensor in state.items() if name != "lm_head.weight"}
    save_file(state, hf_dir / "model.safetensors", metadata={"format": "pt"})


def _no_tokenizer(hf_dir: Path) -> None:
    for path in hf_dir.glob("*token*"):
        path.unlink()


TIED = says(tie_word_embeddings=True)
SOUND: dict[str, Callable[[Path], object]] = {
    "pickles": lambda hf_dir: _pickled(hf_dir, old=False),
    "old pickles": lambda hf_dir: _pickled(hf_dir, old=True),
    "the body alone": _all(TIED, _body_alone),
    "one matrix under the head's name": _all(TIED, holds(model__embed_tokens__weight=lambda _: None)),
    "angles that are computed anyway": holds(model__layers__0__self_attn__rotary_emb__inv_freq=lambda _: torch.ones(6)),
    "unknown keys": says(pretraining_tp=1, auto_map={}, max_window_layers=3),
    "null in place of defaults": says(attention_bias=None, mlp_bias=None, head_dim=12),
    "words of transformers 5 alone": says(rope_parameters=LLAMA3_ROPE | {"rope_theta": 5000.0}, rope_theta=..., rope_scaling=...),
    "no tokenizer": _no_tokenizer,
    "a foreign tokenizer alone": _all(_no_tokenizer, writes("tekken.json", "{}")),
    "weights that nothing reads": writes("model-00001-of-00002.safetensors", "x"),
    "an empty generation config": writes("generation_config.json", "{}"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return save_tiny_model("llama3", tmp_path_factory.mktemp("made") / "hf", tokenizer_dir=tokenizer_dir)


def refused(hf_dir: Path) -> str | None:
    try:
        hf_to_nemo.convert(hf_dir, hf_dir.parent / "nemo")
    except ValueError as error:
        assert not (hf_dir.parent / "nemo").exists()
        return str(error)
    return None


@pytest.mark.parametrize("name", BROKEN)
def test_what_conversion_refuses_is_a_problem(made: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(made, tmp_path / "hf")
    BROKEN[name](tmp_path / "hf")
    found = describe(tmp_path / "hf")
    sentence = refused(tmp_path / "hf")
    assert sentence is not None and sentence in found.problems and sentence not in found.notes


@pytest.mark.parametrize("name", SOUND)
def test_what_conversion_accepts_is_none(made: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(made, tmp_path / "hf")
    SOUND[name](tmp_path / "hf")
    assert describe(tmp_path / "hf").problems == []
    assert refused(tmp_path / "hf") is None


@pytest.mark.parametrize("name", CASES)
def test_every_family_is_sound(tmp_path: Path, name: str) -> None:
    assert describe(save_tiny_model(name, tmp_path / "hf")).problems == []


@pytest.mark.parametrize("model_type", ["gpt2", "mixtral", "qwen2_moe"])
def test_a_model_that_other_commands_take_is_named_in_a_note(made: Path, tmp_path: Path, model_type: str) -> None:
    shutil.copytree(made, tmp_path / "hf")
    says(model_type=model_type)(tmp_path / "hf")
    found = describe(tmp_path / "hf")
    assert found.problems == [] and refused(tmp_path / "hf") in found.notes
