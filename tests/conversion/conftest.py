"""Tiny OPT checkpoints and a tokenizer, made by the libraries whose formats they test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from data_prep.tokenizers.files import save_tokenizer
from tests.conversion.embedding_fixtures import byte_level, demo_text

VOCAB_SIZE = 301  # odd, so that every tensor parallel size above 1 needs padding

OPTMaker = Callable[..., Path]


def tiny_opt(*, seed: int = 0, **config: Any) -> OPTForCausalLM:
    """A random OPT whose every tensor, biases and norms included, is far from zero and one."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 24,
    }
    torch.manual_seed(seed)
    model = OPTForCausalLM(OPTConfig(**{**sizes, **config})).eval()
    for parameter in model.parameters():
        parameter.data.normal_(mean=0.1, std=0.3)
    return model


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(byte_level(demo_text("en")[:5000], num_tokens=280, specials={"bos": "</s>", "eos": "</s>", "pad": "<pad>"}), directory)
    return directory


def _put_pickles(model: OPTForCausalLM, directory: Path) -> None:
    """Put torch's own files in place of safetensors, which transformers 5 no longer writes: a tied matrix under both names."""
    tensors, index = dict(model.state_dict()), directory / "model.safetensors.index.json"
    places = dict.fromkeys(tensors, "pytorch_model.bin")
    if index.is_file():
        listed = {name: f"pytorch_{Path(file).stem}.bin" for name, file in json.loads(index.read_text())["weight_map"].items()}
        places = {name: listed.get(name, max(listed.values())) for name in tensors}
        (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for path in directory.glob("*.safetensors*"):
        path.unlink()
    for file in set(places.values()):
        torch.save({name: tensor for name, tensor in tensors.items() if places[name] == file}, directory / file)


@pytest.fixture
def make_opt(tmp_path: Path, tokenizer_dir: Path) -> OPTMaker:
    """Save a tiny OPT with its tokenizer, as the transformers library does, and give its folder."""

    def make(
        name: str = "hf", *, dtype: torch.dtype = torch.float32, tokenizer: Path | None = tokenizer_dir, saving: Any = None, **config: Any
    ) -> Path:
        directory = tmp_path / name
        model, saving = tiny_opt(**config).to(dtype), saving or {}
        model.save_pretrained(directory, **saving)
        if saving.get("safe_serialization") is False and not any(directory.glob("*.bin")):
            _put_pickles(model, directory)
        if tokenizer is not None:
            shutil.copytree(tokenizer, directory, dirs_exist_ok=True)
        return directory

    return make
