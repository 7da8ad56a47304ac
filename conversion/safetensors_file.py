"""The safetensors format: reading where each tensor lies, and writing a file one tensor at a time.

A file is the header's length (8 bytes, little-endian), the header (JSON: name -> dtype, shape, offsets), then all values
without gaps.  The published library writes a file only from tensors that are all in memory; this module writes the same bytes
from tensors that come one after another.  https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from conversion.lazy_tensor import LazyTensor, read_span, tensor_bytes
from data_prep.artifacts import DigestingWriter

# In the library's order: it lays tensors out by descending type, then by name, so that all are aligned.
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the library's limit


def read_safetensors(path: Path) -> list[LazyTensor]:
    """The tensors of a file, in the order of their values; only the header is read now.

    Raises:
        ValueError: if the file is corrupt or truncated.
    """
    try:
        return _parse(path)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is corrupt or truncated ({error}); copy or download it again") from error


def _parse(path: Path) -> list[LazyTensor]:
    file_bytes = path.stat().st_size
    with open(path, "rb") as stream:
        header_bytes = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        start = _LENGTH_BYTES + header_bytes
        if header_bytes > _MAX_HEADER_BYTES or start > file_bytes:
            raise ValueError(f"its header claims {header_bytes} bytes, the file has {file_bytes}")
        header = json.loads(stream.read(header_bytes), object_pairs_hook=_without_duplicates)
    header.pop("__metadata__", None)
    entries = sorted(((*entry["data_offsets"], name, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()))
    tensors, position = [], 0
    for begin, end, name, dtype_name, shape in entries:
        if dtype_name not in DTYPES:
            raise ValueError(f"{name} has the unknown dtype {dtype_name}")
        dtype = DTYPES[dtype_name]
        if any(not isinstance(size, int) or isinstance(size, bool) or size < 0 for size in shape):
            raise ValueError(f"{name} has the shape {shape}")
        if begin != position or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} ({dtype_name}, shape {shape}) cannot lie at bytes {begin} to {end}")
        tensors.append(LazyTensor(name, shape, dtype, partial(read_span, path, start + begin, shape, dtype)))
        position = end
    if start + position != file_bytes:
        raise ValueError(f"its tensors end at byte {start + position}, the file has {file_bytes}")
    return tensors


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("its header names something twice")
    return content


def write_safetensors(path: Path, tensors: Sequence[LazyTensor]) -> str:
    """Write a file byte for byte as the library would, holding one tensor at a time; returns the file's digest.

    Raises:
        ValueError: if a tensor has a dtype that the format lacks.
    """
    for tensor in tensors:
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{tensor.name} is {tensor.dtype}, which safetensors cannot hold; expected one of {', '.join(DTYPES)}")
    ordered = sorted(tensors, key=lambda tensor: (-_RANKS[tensor.dtype], tensor.name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in ordered:
        offsets = [position, position + tensor.nbytes]
        header[tensor.name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        position += tensor.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with DigestingWriter(path) as stream:
        stream.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
        stream.write(text)
        for tensor in ordered:
            values = tensor.read()
            assert (tuple(values.shape), values.dtype) == (tensor.shape, tensor.dtype), tensor.name
            stream.write(tensor_bytes(values))
        return stream.digest
