"""Tensors that refuse to be read where they hold NaN or infinite values."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

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


def _require_finite(bits: Bits, *, infinity: int, name: str, source: str) -> Bits:
    # Positive numbers are the largest of the signed integers, negative ones of the unsigned: two reductions, and no copy.
    unsigned = bits.view(f"u{bits.dtype.itemsize}")
    sign = 1 << (8 * bits.dtype.itemsize - 1)
    if bits.size and (int(bits.max()) >= infinity or int(unsigned.max()) >= infinity + sign):
        raise ValueError(
            f"{source}: {name} holds values that are NaN or infinite, with which the model gives no numbers; `python -m conversion.inspect"
            " --deep` lists all such tensors; copy the checkpoint again, or take an earlier one"
        )
    return bits
