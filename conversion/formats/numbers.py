"""The numbers that bits stand for, and the bits of numbers, without torch, which takes longer to import than a gigabyte to convert."""

from __future__ import annotations

from typing import Any

import numpy as np

from conversion.formats.lazy_tensor import Bits, bits_dtype, bits_of

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
