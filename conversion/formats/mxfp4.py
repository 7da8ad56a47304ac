"""MXFP4: numbers of four bits, of which 32 share a scale that is a power of two, as gpt-oss is published; read as the bfloat16 that each of them is.

Source: Open Compute Project, Microscaling Formats (MX) Specification 1.0, sections 5.3.3 (E2M1) and 5.4 (E8M0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from conversion.formats.lazy_tensor import Bits, LazyTensor

_BLOCKS, _SCALES = "_blocks", "_scales"
_SHARING = 32  # numbers with one scale, in 16 bytes
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the eight codes without a sign; those with it follow
_NUMBERS = np.array([*_POSITIVE, *(-number for number in _POSITIVE)], dtype=np.float32)
_BIAS = 127


def with_whole_numbers(tensors: Mapping[str, LazyTensor], *, source: str) -> dict[str, LazyTensor]:
    """The same tensors, those in two parts (`NAME_blocks`, `NAME_scales`) as `NAME` in bfloat16; nothing is read yet.

    Every number is exactly what the two parts say.  As transformers has them, inputs come before outputs:
    (experts, outputs, inputs / 32, 16) and (experts, outputs, inputs / 32) become (experts, inputs, outputs).

    Raises:
        ValueError: if one of two parts is missing, or they do not fit each other.
    """
    names = dict.fromkeys(name.removesuffix(part) for part in (_BLOCKS, _SCALES) for name in tensors if name.endswith(part))
    whole = {name: tensor for name, tensor in tensors.items() if not name.endswith((_BLOCKS, _SCALES))}
    for name in names:
        blocks, scales = tensors.get(name + _BLOCKS), tensors.get(name + _SCALES)
        if blocks is None or scales is None:
            raise ValueError(
                f"{source} has only one of {name}{_BLOCKS} and {name}{_SCALES}, the two parts of a matrix in MXFP4; copy it again"
            )
        fits = len(scales.shape) == 3 and blocks.shape == (*scales.shape, _SHARING // 2)
        if not fits or {blocks.dtype_name, scales.dtype_name} != {"uint8"}:
            raise ValueError(
                f"{source} has {name}{_BLOCKS} of {blocks.dtype_name} {blocks.shape} and {name}{_SCALES} of {scales.dtype_name} {scales.shape};"
                f" expected uint8 (experts, outputs, blocks, {_SHARING // 2}) and (experts, outputs, blocks)"
            )
        experts, outputs, num_blocks = scales.shape
        shape = (experts, num_blocks * _SHARING, outputs)
        rows = partial(_experts, blocks, scales)
        whole[name] = LazyTensor(name, shape, "bfloat16", partial(rows, 0, experts), rows)
    return whole


def num_weights(name: str, shape: Sequence[int]) -> int:
    """How many of a model's weights a stored tensor says: two in each byte of blocks, and none in scales."""
    return 0 if name.endswith(_SCALES) else math.prod(shape) * (2 if name.endswith(_BLOCKS) else 1)


def _experts(blocks: LazyTensor, scales: LazyTensor, start: int, stop: int) -> Bits:
    """Some experts' matrices, (experts, inputs, outputs), one after the other."""
    experts, outputs, num_blocks = (stop - start, *scales.shape[1:])
    found = np.empty((experts, num_blocks * _SHARING, outputs), dtype=np.int16)
    for number in range(start, stop):
        codes, exponents = (part.row_range("", number, number + 1).bits()[0].view(np.uint8) for part in (blocks, scales))
        pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(outputs, num_blocks, _SHARING)
        with np.errstate(over="ignore"):  # infinite numbers are refused where they are read
            numbers = np.ldexp(_NUMBERS[pairs], exponents[..., None].astype(np.int32) - _BIAS)
        # The upper half of a float32 is the bfloat16: these numbers have two significant bits.
        upper = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.int16)
        found[number - start] = upper.reshape(outputs, -1).T
    return found
