"""The model of a GGUF file as Hugging Face has it: config.json and tensors, dequantized when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from conversion.formats.lazy_tensor import LazyTensor
from conversion.gguf.architectures import Architecture, Change, Listed, Place, architecture_of, hf_config, places, undone
from conversion.gguf.file import GGUFFile

ROPE_FACTORS = "rope_freqs.weight"


def model_of(file: GGUFFile, dtype_name: str) -> tuple[Architecture, dict[str, Any], list[LazyTensor]]:
    """The table of a file's architecture, config.json, and the tensors under Hugging Face's names, the token table first.

    Raises:
        ValueError: as `architecture_of`, `hf_config` and `places`, and if a tensor has another shape than its table says.
    """
    architecture = architecture_of(file.metadata, str(file.path))
    factors = next(file.rows(ROPE_FACTORS)) if ROPE_FACTORS in file.tensors else None
    config = hf_config(architecture, file.metadata, rope_factors=factors, source=str(file.path))
    config |= {"torch_dtype": dtype_name, "tie_word_embeddings": "output.weight" not in file.tensors, "use_cache": True}
    tensors = [*_tensors(file, architecture, config, dtype_name), *_listed(file, architecture, config, dtype_name)]
    return architecture, config | {"vocab_size": tensors[0].shape[0]}, tensors


def _tensors(file: GGUFFile, architecture: Architecture, config: dict[str, Any], dtype_name: str) -> Iterator[LazyTensor]:
    """Those that are tensors of the file, the token table first."""
    found = places(architecture, list(file.tensors), config, str(file.path))
    for place in sorted(found, key=lambda place: place.names[0] != "token_embd.weight"):
        dtype: torch.dtype = getattr(torch, dtype_name)
        yield LazyTensor.of_blocks(place.hf, _shape(file, place, config), dtype, partial(_blocks, file, place, config, dtype))


def _shape(file: GGUFFile, place: Place, config: dict[str, Any]) -> tuple[int, ...]:
    """Of the tensor as Hugging Face has it."""
    shapes = {file.tensors[name].shape for name in place.names}
    shape, *others = shapes
    num_experts = config.get("num_experts", config.get("num_local_experts"))
    of_experts = place.change in (Change.EXPERTS, Change.TRANSPOSED, Change.DIVIDED)
    if others or (of_experts and (len(shape) < 2 or shape[0] != num_experts)):
        raise ValueError(
            f"{file.path}: {' and '.join(place.names)} have the shape {' and '.join(map(str, shapes))}; expected those of {num_experts} experts,"
            " all the same; copy or download it again"
        )
    match place.change:
        case Change.EXPERTS:
            return shape[1:]
        case Change.TRANSPOSED:
            return (shape[0], shape[2], shape[1])
        case Change.DIVIDED:
            return (shape[0], shape[2], 2 * shape[1]) if len(shape) > 2 else (shape[0], 2 * shape[1])
        case _:
            return shape


def _blocks(file: GGUFFile, place: Place, config: dict[str, Any], dtype: torch.dtype) -> Iterator[torch.Tensor]:
    for values in _values(file, place, config):
        yield torch.from_numpy(np.array(values, order="C")).to(dtype)


def _values(file: GGUFFile, place: Place, config: dict[str, Any]) -> Iterator[np.ndarray[Any, Any]]:
    name, heads = place.names[0], config["num_attention_heads"]
    shape = file.tensors[name].shape
    match place.change:
        case Change.EXPERTS:
            assert place.expert is not None
            yield from file.rows(name, place.expert * shape[1], (place.expert + 1) * shape[1])
        case Change.TRANSPOSED:
            for expert in range(shape[0]):
                yield _expert(file, name, expert).T[None]
        case Change.DIVIDED:
            for expert in range(shape[0]):
                gate, up = (_expert(file, part, expert) for part in place.names)
                yield np.stack([gate, up], 1).reshape(-1, *gate.shape[1:]).T[None]
        case change:
            blocks = file.rows(name)
            if change in (Change.QUERY, Change.KEY):  # heads are undone as a whole
                blocks = iter([np.concatenate(list(blocks))])
            for values in blocks:
                undo = undone(values, change, num_heads=heads, num_key_value_heads=config.get("num_key_value_heads", heads))
                yield undo.reshape(-1, *shape[1:])


def _expert(file: GGUFFile, name: str, expert: int) -> np.ndarray[Any, Any]:
    """One expert's matrix, (rows, columns), or biases, (rows,)."""
    shape = file.tensors[name].shape
    if len(shape) == 2:
        return next(file.rows(name, expert, expert + 1))[0]
    return np.concatenate(list(file.rows(name, expert * shape[1], (expert + 1) * shape[1])))


def _listed(file: GGUFFile, architecture: Architecture, config: dict[str, Any], dtype_name: str) -> Iterator[LazyTensor]:
    """Those whose values stand in the metadata."""
    for row in architecture.listed:
        for layer, value in enumerate(_of_layers(file, row, config["num_hidden_layers"])):
            tensor = torch.full(row.shape, value, dtype=torch.float32).to(getattr(torch, dtype_name))
            yield LazyTensor.of(row.hf.replace("*", str(layer)), tensor)


def _of_layers(file: GGUFFile, row: Listed, num_layers: int) -> list[float]:
    values = file.metadata.get(row.key)
    values = [values] * num_layers if isinstance(values, float) else values
    if not isinstance(values, list) or len(values) != num_layers or not all(isinstance(value, float) for value in values):
        raise ValueError(
            f"{file.path} has {row.key} {values!r}; expected a number for each of {num_layers} layers; copy or download it again"
        )
    return values
