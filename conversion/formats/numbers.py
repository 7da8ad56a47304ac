"""The numbers that bits stand for, and the bits of numbers, without torch, which takes longer to import than a gigabyte to convert."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conversion.formats.lazy_tensor import Bits, LazyTensor, bits_dtype, bits_of

Numbers = np.ndarray[Any, Any]
_NAN_BFLOAT16 = 0x7FC0


def numbers_of(bits: Bits, dtype_name: str) -> Numbers:
    """The numbers, in float32, those of float64 in float64; a view of the bits where they are that already.

    Args:
        bits: of any shape.
        dtype_name: torch's name of a floating dtype.
    """
    if dtype_name in ("float32", "float64"):
        return bits.view(dtype_name)
    if dtype_name == "float16":
        return bits.view(np.float16).astype(np.float32)
    if dtype_name == "bfloat16":  # the upper half of a float32
        return (bits.astype(np.int32) << 16).view(np.float32)
    import torch

    values: Numbers = torch.from_numpy(bits).view(getattr(torch, dtype_name)).float().numpy()
    return values


def rounded_to(numbers: Numbers, dtype_name: str) -> Bits:
    """The bits of numbers in a dtype, each rounded to the nearest, halves to even; a view of the numbers where they have that dtype.

    Args:
        numbers: float32, contiguous, of any shape.
    """
    if dtype_name in ("float32", "float64", "float16"):
        with np.errstate(over="ignore"):  # what is too large is infinite
            return numbers.astype(dtype_name, copy=False).view(bits_dtype(dtype_name))
    if dtype_name == "bfloat16":
        bits = numbers.view(np.uint32)
        halves = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
        halves[np.isnan(numbers)] = _NAN_BFLOAT16
        return halves.view(np.int16)
    import torch

    return bits_of(torch.from_numpy(numbers).to(getattr(torch, dtype_name)))


# The bits of infinity: those of every NaN are above them, those of every other number below, whatever the sign.
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


def finite(tensor: LazyTensor, *, source: str) -> LazyTensor:
    """The same tensor, whose reading raises a ValueError where values are NaN or infinite."""
    infinity = _INFINITY.get(tensor.dtype_name)
    if infinity is None:
        return tensor
    check = partial(_require_finite, infinity=infinity, name=tensor.name, source=source)
    rows, blocks = tensor.rows, tensor.blocks
    return replace(
        tensor,
        bits=lambda: check(tensor.bits()),
        rows=None if rows is None else lambda start, stop: check(rows(start, stop)),
        blocks=None if blocks is None else lambda: map(check, blocks()),
    )


def finite_rows(bits: Bits, dtype_name: str) -> np.ndarray:
    """For each row of numbers whether all of them are finite, (num_rows,) bool; of a dtype that is not supported, all rows.

    Args:
        bits: (num_rows, size)
    """
    infinity = _INFINITY.get(dtype_name)
    return np.ones(len(bits), dtype=bool) if infinity is None or not bits.size else ~_reaches(infinity, bits, axis=1)


def _reaches(infinity: int, bits: Bits, axis: int | None = None) -> np.ndarray:
    # Positive numbers are the largest of the signed integers, negative ones of the unsigned: two reductions, and no copy.
    unsigned = bits.view(f"u{bits.dtype.itemsize}")
    sign = 1 << (8 * bits.dtype.itemsize - 1)
    return (bits.max(axis=axis) >= infinity) | (unsigned.max(axis=axis) >= infinity + sign)


def _require_finite(bits: Bits, *, infinity: int, name: str, source: str) -> Bits:
    if bits.size and _reaches(infinity, bits):
        raise ValueError(
            f"{source}: {name} holds values that are NaN or infinite, with which the model gives no numbers; `python -m conversion.inspect"
            " --deep` lists all such tensors; copy the checkpoint again, or take an earlier one"
        )
    return bits
