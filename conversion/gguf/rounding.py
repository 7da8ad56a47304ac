"""What quantization took from a file's tensors: bits per weight of each type, and how coarse its steps are beside the weights."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from conversion.gguf.file import GGUFFile, QuantizedTensor

_BLOCK_VALUES = 32  # weights that share a scale, in ggml's types; larger blocks are made of such
_FLOATS = ("F64", "F32", "F16", "BF16")
_SAMPLED_VALUES = 1 << 16


def describe_quantization(file: GGUFFile) -> dict[str, dict[str, Any]]:
    """Type -> number of tensors, bits per weight, and the rounding's share of the weights' size.

    A weight was moved by up to half a step of its block, evenly spread, so the root of the mean square of what was lost is the step over
    the root of 12.  `rounding_share` is that over the root mean square of the weights, from the first values of each tensor; None for floats.
    """
    groups: dict[str, list[QuantizedTensor]] = defaultdict(list)
    for tensor in file.tensors.values():
        groups[tensor.kind].append(tensor)
    return {
        kind: {
            "tensors": len(tensors),
            "weights": sum(tensor.num_values for tensor in tensors),
            "bits_per_weight": 8 * sum(tensor.nbytes for tensor in tensors) / sum(tensor.num_values for tensor in tensors),
            "rounding_share": None if kind in _FLOATS else _rounding_share(file, tensors),
        }
        for kind, tensors in sorted(groups.items())
    }


def _rounding_share(file: GGUFFile, tensors: list[QuantizedTensor]) -> float:
    lost = size = 0.0
    for tensor in tensors:
        values = next(file.rows(tensor.name)).reshape(-1)[:_SAMPLED_VALUES].astype(np.float64)
        blocks = values[: len(values) // _BLOCK_VALUES * _BLOCK_VALUES].reshape(-1, _BLOCK_VALUES)
        lost += float((smallest_steps(blocks) ** 2).mean() / 12) * tensor.num_values
        size += float((values**2).mean()) * tensor.num_values
    return float(np.sqrt(lost / size)) if size else 0.0


def smallest_steps(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The smallest distance of two different values of each block, (blocks, values) -> (blocks,); 0 where all are one."""
    gaps = np.diff(np.sort(blocks, axis=1), axis=1)
    tolerance = np.abs(blocks).max(axis=1, keepdims=True) * 1e-5  # a scale times a whole number is rounded
    steps = np.where(gaps > tolerance, gaps, np.inf).min(axis=1)
    return np.where(np.isfinite(steps), steps, 0.0)
