"""Values that are NaN or infinite: found in rows, and tensors that refuse to be read where they hold some."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from conversion.formats.lazy_tensor import Bits, LazyTensor

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
    """For each row of numbers whether all of them are finite, (num_rows,) bool; of a dtype that is not covered, all rows.

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
