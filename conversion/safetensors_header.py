"""The header of a safetensors file: where each tensor lies, found without torch.

A file is the header's length (8 bytes, little-endian), the header (JSON: name -> dtype, shape, offsets), then all values
without gaps.  https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversion.dtypes import DTYPE_BYTES

# In the library's order: it lays tensors out by descending type, then by name, so that all are aligned.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "F32": "float32",
    "F64": "float64",
    "I64": "int64",
}
LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the library's limit


@dataclass(frozen=True)
class Span:
    """A tensor of a file; `offset` is that of its first byte, the dtype is torch's name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def num_values(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


def read_header(path: Path) -> list[Span]:
    """The tensors of a file, in the order of their values; only the header is read.

    Raises:
        ValueError: if the file is corrupt or truncated.
    """
    try:
        return _parse(path)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is corrupt or truncated ({error}); copy or download it again") from error


def _parse(path: Path) -> list[Span]:
    file_bytes = path.stat().st_size
    with open(path, "rb") as stream:
        header_bytes = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        start = LENGTH_BYTES + header_bytes
        if header_bytes > _MAX_HEADER_BYTES or start > file_bytes:
            raise ValueError(f"its header claims {header_bytes} bytes, the file has {file_bytes}")
        header = json.loads(stream.read(header_bytes), object_pairs_hook=_without_duplicates)
    header.pop("__metadata__", None)
    entries = sorted(((*entry["data_offsets"], name, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()))
    spans, position = [], 0
    for begin, end, name, code, shape in entries:
        if code not in DTYPES:
            raise ValueError(f"{name} has the unknown dtype {code}")
        if any(not isinstance(size, int) or isinstance(size, bool) or size < 0 for size in shape):
            raise ValueError(f"{name} has the shape {shape}")
        if begin != position or end - begin != math.prod(shape) * DTYPE_BYTES[DTYPES[code]]:
            raise ValueError(f"{name} ({code}, shape {shape}) cannot lie at bytes {begin} to {end}")
        spans.append(Span(name, shape, DTYPES[code], start + begin))
        position = end
    if start + position != file_bytes:
        raise ValueError(f"its tensors end at byte {start + position}, the file has {file_bytes}")
    return spans


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("its header names something twice")
    return content
