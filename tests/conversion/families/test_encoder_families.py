"""BERT, RoBERTa and XLM-R: what their published files have besides the model, and which variants are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING

from conversion import hf_to_nemo
from conversion.families import FAMILIES
from conversion.formats.dist_checkpoint import read_dist_checkpoint
from tests.conversion.folders import edited_tensors, there_and_back
from tests.conversion.tiny_families import save_tiny_model
from tests.refusals import refused


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    return save_tiny_model("xlm_roberta", tmp_path / "hf")


def test_the_pooler_comes_back_and_what_is_there_twice_does_not(hf: Path, tmp_path: Path) -> None:
    """As in the published files: a pooler that no masked model has, the bias under two names, the numbers of the positions."""
    own = load_file(hf / "model.safetensors")
    pooler = {"roberta.pooler.dense.weight": torch.randn(32, 32), "roberta.pooler.dense.bias": torch.randn(32)}
    with edited_tensors(hf) as state:
        state |= pooler | {"lm_head.decoder.bias": own["lm_head.bias"].clone(), "roberta.embeddings.position_ids": torch.arange(64)[None]}
    back = load_file(there_and_back(hf, tmp_path) / "model.safetensors")
    assert back.keys() == (own | pooler).keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in (own | pooler).items())
    engine = read_dist_checkpoint(tmp_path / "nemo/weights", prefix="module.")
    assert not any("pooler" in name for name in engine)


def test_positions_begin_behind_those_of_padding(hf: Path, tmp_path: Path) -> None:
    hf_to_nemo.convert(hf, tmp_path / "nemo")
    table = load_file(hf / "model.safetensors")["roberta.embeddings.position_embeddings.weight"]
    engine = read_dist_checkpoint(tmp_path / "nemo/weights", prefix="module.")
    assert torch.equal(engine["embedding.position_embeddings.weight"].read(), table[2:])


def test_a_second_bias_that_differs_is_refused(hf: Path, tmp_path: Path) -> None:
    with edited_tensors(hf) as state:
        state["lm_head.decoder.bias"] = torch.zeros(313)
    sentence = f"{hf} has lm_head.decoder.bias, which should be lm_head.bias a second time but differs from it; remove the wrong one"
    with refused(sentence):
        hf_to_nemo.convert(hf, tmp_path / "nemo")
    assert not (tmp_path / "nemo").exists()


def with_published_names(directory: Path) -> dict[str, torch.Tensor]:
    """A BERT as in its published files: gamma and beta, a pooler, a classifier of following sentences, the numbers of the positions."""
    file = directory / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(file).items()
    }
    old |= {"bert.pooler.dense.weight": torch.randn(32, 32), "bert.pooler.dense.bias": torch.randn(32)}
    old |= {"cls.seq_relationship.weight": torch.randn(2, 32), "cls.seq_relationship.bias": torch.randn(2)}
    save_file(dict(sorted(old.items())), file, metadata={"format": "pt"})
    return old


def test_a_published_bert_comes_back_under_its_own_names(tmp_path: Path) -> None:
    """In the engine it is the same as under the names of the library."""
    plain = save_tiny_model("bert", tmp_path / "plain")
    old = with_published_names(save_tiny_model("bert", tmp_path / "hf"))
    back = load_file(there_and_back(tmp_path / "hf", tmp_path) / "model.safetensors")
    assert back.keys() == old.keys() and any(name.endswith("LayerNorm.gamma") for name in back)
    assert all(torch.equal(back[name], tensor) for name, tensor in old.items())
    hf_to_nemo.convert(plain, tmp_path / "of_plain")
    expected, found = (read_dist_checkpoint(tmp_path / name / "weights", prefix="module.") for name in ("of_plain", "nemo"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name].read(), tensor.read()) for name, tensor in expected.items())


def test_positions_of_bert_begin_at_the_first_row(tmp_path: Path) -> None:
    hf = save_tiny_model("bert", tmp_path / "hf", pad_token_id=7)
    hf_to_nemo.convert(hf, tmp_path / "nemo")
    table = load_file(hf / "model.safetensors")["bert.embeddings.position_embeddings.weight"]
    engine = read_dist_checkpoint(tmp_path / "nemo/weights", prefix="module.")
    assert torch.equal(engine["embedding.position_embeddings.weight"].read(), table)
    assert engine["embedding.end.token_types"].shape == (2, 32)


VARIANTS = {"position_embedding_type": "relative_key", "hidden_act": "relu", "is_decoder": True, "add_cross_attention": True}


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [*((model_type, *row) for model_type in ("bert", "roberta") for row in VARIANTS.items()), ("roberta", "pad_token_id", 0)],
)
def test_variants_are_refused_by_name(model_type: str, key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^models/x has {key} {value!r} in its config\.json \(expected .*\): .* supported$"):
        FAMILIES[model_type].megatron_config({**CONFIG_MAPPING[model_type]().to_dict(), key: value}, tied=True, source="models/x")
