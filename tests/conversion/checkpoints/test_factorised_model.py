"""Models that keep their factors, beside plain ones that have the product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, LlamaForCausalLM

from conversion import hf_to_nemo, nemo_to_hf
from conversion.checkpoints.factorised_model import load_factorised
from conversion.checkpoints.factors import FACTORISED_NAME, factor_names
from conversion.checkpoints.token_names import names_of
from conversion.families import FAMILIES
from tests.conversion.folders import edit_json
from tests.conversion.tiny_families import CASES, save_tiny_model, tiny_model
from tests.refusals import refused

DIMENSIONS = 5
TIED = [name for name, case in CASES.items() if FAMILIES[case.model_type].language_part is None]


def save_factorised(name: str, directory: Path) -> Any:
    """The same tied model as a folder with factors, and in memory with their product."""
    model = tiny_model(name, tie_word_embeddings=True)
    generator = torch.Generator().manual_seed(1)
    embedding = model.get_input_embeddings()
    coordinates = torch.randn(embedding.weight.shape[0], DIMENSIONS, generator=generator)
    primitives = torch.randn(DIMENSIONS, embedding.weight.shape[1], generator=generator)
    with torch.no_grad():
        embedding.weight.copy_(coordinates @ primitives)
    model.save_pretrained(directory)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items() if tensor.data_ptr() != embedding.weight.data_ptr()}
    parameters = model.named_parameters(remove_duplicate=False)  # whose order is not the same in all versions
    [table] = [key for key, parameter in parameters if parameter is embedding.weight and names_of(key)]
    names = factor_names(table)
    state = {key: tensor for key, tensor in state.items() if not key.endswith("decoder.bias")}  # the same once more
    save_file({**state, names["coordinates"]: coordinates, names["primitives"]: primitives}, directory / FACTORISED_NAME)
    (directory / "model.safetensors").unlink()
    return model


@pytest.mark.some(6)
@pytest.mark.parametrize("name", TIED)
def test_logits_are_those_of_the_product(name: str, tmp_path: Path) -> None:
    expected, found = save_factorised(name, tmp_path), load_factorised(tmp_path)
    ids = torch.arange(5, 35)[None]
    with torch.inference_mode():
        torch.testing.assert_close(found(ids).logits, expected(ids).logits, atol=1e-4, rtol=1e-5)
    rows, width = expected.get_input_embeddings().weight.shape
    numbers = [sum(parameter.numel() for parameter in model.parameters()) for model in (expected, found)]
    assert numbers[0] - numbers[1] == rows * width - DIMENSIONS * (rows + width)
    assert found.config.vocab_size == rows


def test_both_factors_learn(tmp_path: Path) -> None:
    save_factorised("roberta", tmp_path)
    model = load_factorised(tmp_path)
    ids = torch.arange(5, 35)[None]
    model(ids, labels=ids).loss.backward()
    embedding = model.get_input_embeddings()
    assert embedding.coordinates.grad.abs().max() > 0 and embedding.primitives.grad.abs().max() > 0


def test_transformers_does_not_draw_a_table(tmp_path: Path) -> None:
    """Which it would, with a warning, for a file of its own name."""
    save_factorised("roberta", tmp_path)
    with pytest.raises(OSError, match=r"no file named .*model\.safetensors"):
        AutoModelForMaskedLM.from_pretrained(tmp_path)


def test_what_does_not_belong_together(tmp_path: Path) -> None:
    save_factorised("roberta", tmp_path / "model")
    config = tmp_path / "model/config.json"
    edit_json(config, vocab_size=400)
    sentence = (
        f"{tmp_path}/model/{FACTORISED_NAME} has factors of (311, 5) and (5, 32), but config.json speaks of 400 tokens of 32 dimensions;"
        " copy the folder again"
    )
    with refused(sentence):
        load_factorised(tmp_path / "model")
    edit_json(config, vocab_size=311, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"differ in roberta\.encoder\.layer\.3\.attention\.output\.LayerNorm\.bias, "):
        load_factorised(tmp_path / "model")


def test_a_plain_folder_has_no_factors(tmp_path: Path) -> None:
    hf = save_tiny_model("roberta", tmp_path / "hf")
    sentence = (
        f"{hf} holds no {FACTORISED_NAME}, as `python -m conversion.nemo_to_hf --keep-factors` writes it; a folder with model.safetensors is"
        " loaded by transformers itself"
    )
    with refused(sentence):
        load_factorised(hf)
    hf_to_nemo.convert(hf, tmp_path / "nemo")
    sentence = f"{tmp_path}/nemo has a token table of one matrix, no factors that could be kept; leave out --keep-factors, or train with model.factors"
    with refused(sentence):
        nemo_to_hf.export(tmp_path / "nemo", tmp_path / "back", keep_factors=True)
    assert not (tmp_path / "back").exists()


def test_a_causal_model_is_one_still(tmp_path: Path) -> None:
    save_factorised("llama2", tmp_path)
    assert isinstance(load_factorised(tmp_path), LlamaForCausalLM)
