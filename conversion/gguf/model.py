"""The model of a GGUF file as Hugging Face has it: config.json and tensors, dequantized when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from conversion.formats.lazy_tensor import LazyTensor
from conversion.gguf.architectures import Architecture, Change, architecture_of, hf_config, hf_names, undone
from conversion.gguf.file import GGUFFile

ROPE_FACTORS = "rope_freqs.weight"


def model_of(file: GGUFFile, dtype_name: str) -> tuple[Architecture, dict[str, Any], list[LazyTensor]]:
    """The table of a file's architecture, config.json, and the tensors under Hugging Face's names, the token table first.

    Raises:
        ValueError: as `architecture_of`, `hf_config` and `hf_names`.
    """
    architecture = architecture_of(file.metadata, str(file.path))
    factors = next(file.rows(ROPE_FACTORS)) if ROPE_FACTORS in file.tensors else None
    config = hf_config(architecture, file.metadata, rope_factors=factors, source=str(file.path))
    config |= {"torch_dtype": dtype_name, "tie_word_embeddings": "output.weight" not in file.tensors, "use_cache": True}
    tensors = list(_tensors(file, architecture, config, dtype_name))
    return architecture, config | {"vocab_size": tensors[0].shape[0]}, tensors


def _tensors(file: GGUFFile, architecture: Architecture, config: dict[str, Any], dtype_name: str) -> Iterator[LazyTensor]:
    """The tensors under Hugging Face's names, the token table first."""
    named = sorted(
        hf_names(architecture, list(file.tensors), config["num_hidden_layers"], str(file.path)),
        key=lambda row: row[0] != "token_embd.weight",
    )
    for name, hf_name, change in named:
        blocks = partial(_blocks, file, name, change, config, getattr(torch, dtype_name))
        yield LazyTensor.of_blocks(hf_name, file.tensors[name].shape, getattr(torch, dtype_name), blocks)


def _blocks(file: GGUFFile, name: str, change: Change, config: dict[str, Any], dtype: torch.dtype) -> Iterator[torch.Tensor]:
    blocks = file.rows(name)
    if change in (Change.QUERY, Change.KEY):  # heads are undone as a whole
        blocks = iter([np.concatenate(list(blocks))])
    heads = config["num_attention_heads"]
    for values in blocks:
        yield torch.from_numpy(
            undone(values, change, num_heads=heads, num_key_value_heads=config.get("num_key_value_heads", heads)).copy()
        ).to(dtype)
