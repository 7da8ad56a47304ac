"""Models by the config.json that they were published with, in small: to NeMo and back bit for bit, or refused by the key that stands in the way.

A further model is a row of `published_models.jsonl`: its name, its config.json, and where it is refused what the sentence names.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.hf_files import add_missing_class, in_words_of_both
from conversion.families import FAMILIES
from conversion.verify import Side, compare_configurations, compare_tensors

ROWS = [json.loads(line) for line in Path(__file__).with_name("published_models.jsonl").read_text(encoding="utf-8").splitlines()]
WEIGHTS, LAYERS, ROTATIONS, VOCABULARY = "model.safetensors", 4, 4, 101
SMALL = {"hidden_size": 32, "intermediate_size": 48, "ffn_dim": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "head_dim": 8}
SMALL |= {"vocab_size": VOCABULARY, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SEEING = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}


def small(config: dict[str, Any]) -> dict[str, Any]:
    """The same model with fewer and smaller layers; every key stays, and what is tied to sizes follows."""
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    found = {**config, **{key: value for key, value in SMALL.items() if key in config}}
    if groups is not None:
        found["num_key_value_heads"] = 4 if groups == heads else min(groups, 2)
    if "word_embed_proj_dim" in config:
        found["word_embed_proj_dim"] = 32 if config["word_embed_proj_dim"] == config["hidden_size"] else 16
    for key in ("layer_types", "no_rope_layers"):
        if isinstance(config.get(key), list):
            found[key] = config[key][:LAYERS]
    if isinstance(rope := config.get("rope_scaling"), dict):
        found["rope_scaling"] = {key: value[:ROTATIONS] if isinstance(value, list) else value for key, value in rope.items()}
    if (config.get("pad_token_id") or 0) >= VOCABULARY:
        found["pad_token_id"] = VOCABULARY - 1
    if "text_config" in config:  # the class's own sizes, where the file is silent
        text = small({"vocab_size": 0, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, **config["text_config"]})
        found |= {"text_config": text, "vision_config": {**config["vision_config"], **SEEING}, "mm_tokens_per_image": 4}
    return found


def save(config: dict[str, Any], directory: Path) -> Path:
    """A folder with this very config.json and random tensors of the class that it names, all of them far from zero and one."""
    torch.manual_seed(0)
    said = copy.deepcopy(config)
    add_missing_class(said["model_type"])
    library = AutoModelForMaskedLM if FAMILIES[said["model_type"]].masked else AutoModelForCausalLM
    model = library.from_config(AutoConfig.for_model(said.pop("model_type"), **said))
    for parameter in model.parameters():
        parameter.data.normal_(mean=0.1, std=0.3)
    model.float().save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("row", [row for row in ROWS if "refused" not in row], ids=lambda row: row["id"])
def test_there_and_back(row: dict[str, Any], tmp_path: Path) -> None:
    hf = save(small(row["config"]), tmp_path / "hf")
    hf_to_nemo.convert(hf, tmp_path / "nemo")
    a, b = Side.open(hf), Side.open(tmp_path / "nemo")
    *same, values = compare_tensors(a.tensors, b.tensors)
    assert all(result.same for result in [*same, compare_configurations(a, b)]) and "the first that is not" not in values.detail
    nemo_to_hf.export(tmp_path / "nemo", tmp_path / "back")
    before, after = (load_file(folder / WEIGHTS) for folder in (hf, tmp_path / "back"))
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    said = in_words_of_both(json.loads((hf / "config.json").read_text()), source="x")
    assert json.loads((tmp_path / "back/config.json").read_text()) == said


@pytest.mark.parametrize("row", [row for row in ROWS if "refused" in row], ids=lambda row: row["id"])
def test_what_is_refused_is_named(row: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small(row["config"])))
    save_file({"model.embed_tokens.weight": torch.ones(101, 32), "lm_head.weight": torch.ones(101, 32)}, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match=rf"(?:model type|has|architecture|config\.json).*\b(?:{row['refused']})\b"):
        hf_to_nemo.convert(tmp_path, tmp_path / "nemo")
    assert not (tmp_path / "nemo").exists()
