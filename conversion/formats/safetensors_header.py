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

from conversion.formats.dtypes import DTYPE_BYTES

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
_MAX_DIMENSIONS = 64  # of an array of numpy


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
    entries = [(*_offsets(entry["data_offsets"]), name, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()]
    spans, position = [], 0
    for begin, end, name, code, shape in sorted(entries, key=lambda entry: entry[:3]):
        if not isinstance(code, str) or code not in DTYPES:
            raise ValueError(f"{name} has the unknown dtype {str(code)[:40]}")
        if len(shape) > _MAX_DIMENSIONS or any(type(size) is not int or not 0 <= size < 1 << 63 for size in shape):
            raise ValueError(f"{name} has the shape {str(shape)[:80]}")
        if begin != position or end - begin != math.prod(shape) * DTYPE_BYTES[DTYPES[code]]:
            raise ValueError(f"{name} ({code}, shape {shape}) cannot lie at bytes {begin} to {end}")
        spans.append(Span(name, shape, DTYPES[code], start + begin))
        position = end
    if start + position != file_bytes:
        raise ValueError(f"its tensors end at byte {start + position}, the file has {file_bytes}")
    return spans


def _offsets(values: Any) -> tuple[int, int]:
    """First and last-but-one byte; 0.0 is no place in a file, though equal to one."""
    begin, end = values
    if type(begin) is not int or type(end) is not int:
        raise ValueError(f"it has a tensor at {str(values)[:80]}; expected whole numbers of bytes")
    return begin, end


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("its header names something twice")
    return content
