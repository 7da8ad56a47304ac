"""A healthy model that also sees: what it is is said, and nothing is called broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from conversion import edit_vocabulary, hf_to_nemo, transfer
from conversion.inspection import describe

SENTENCE = (
    "a multimodal model of the type gemma3, whose language model (gemma3_text) stands in text_config of its config.json;"
    " such models are not covered yet"
)


@pytest.fixture
def seeing(tmp_path: Path, tokenizer_dir: Path) -> Path:
    """The names and configuration of such a checkpoint; only the vision tower has a second layer."""
    directory = tmp_path / "seeing"
    directory.mkdir()
    text = {"model_type": "gemma3_text", "vocab_size": 300, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"num_hidden_layers": 2}, "tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {
        "language_model.model.embed_tokens.weight": torch.ones(300, 8),
        "language_model.model.layers.0.mlp.up_proj.weight": torch.ones(8, 8),
        "vision_tower.encoder.layers.0.mlp.weight": torch.ones(8, 8),
        "vision_tower.encoder.layers.1.mlp.weight": torch.ones(8, 8),
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    for path in tokenizer_dir.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    return directory


def test_inspection_finds_no_problem(seeing: Path) -> None:
    found = describe(seeing)
    assert found.problems == []
    assert found.notes == [f"this is {SENTENCE} by conversion and transfer; the sizes are those of its language model"]
    assert (found.vocab_size, found.sizes["num_hidden_layers"], found.tie_word_embeddings) == (300, 1, True)


@pytest.mark.parametrize("main", [transfer.main, hf_to_nemo.main, edit_vocabulary.main])
def test_the_others_refuse_it_by_what_it_is(seeing: Path, tmp_path: Path, main: Callable[[list[str]], int]) -> None:
    source = ["--source" if main is transfer.main else "--input", str(seeing), "--output", str(tmp_path / "out")]
    options = {transfer.main: ["--tokenizer", str(seeing), "--method", "mean"], edit_vocabulary.main: ["--append-rows", "2"]}
    with pytest.raises(ValueError, match=f"^{re.escape(f'{seeing} is {SENTENCE}: save the language model alone')}"):
        main([*source, *options.get(main, [])])
    assert not (tmp_path / "out").exists()
