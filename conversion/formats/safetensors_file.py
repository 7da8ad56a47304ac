"""The safetensors format: tensors read where they lie, and a file written one tensor at a time.

The published library writes a file only from tensors that are all in memory; this module writes the same bytes from tensors
that come one after another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conversion.formats.large_file import LargeFileWriter
from conversion.formats.lazy_tensor import LazyTensor, bits_dtype, lazy_span
from conversion.formats.safetensors_header import DTYPES, LENGTH_BYTES, read_header

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_RANKS = {dtype: rank for rank, dtype in enumerate(_NAMES)}


def read_safetensors(path: Path) -> list[LazyTensor]:
    """The tensors of a file, in the order of their values; only the header is read now.

    Raises:
        ValueError: if the file is corrupt or truncated.
    """
    return [lazy_span(span.name, path, span.offset, span.shape, span.dtype) for span in read_header(path)]


def write_safetensors(path: Path, tensors: Sequence[LazyTensor]) -> str:
    """Write a file byte for byte as the library would, holding one tensor (or block of one) at a time; returns the file's digest.

    Raises:
        ValueError: if a tensor has a dtype that the format lacks.
    """
    for tensor in tensors:
        if tensor.dtype_name not in _NAMES:
            raise ValueError(
                f"{tensor.name} is torch.{tensor.dtype_name}, which safetensors cannot hold; expected one of {', '.join(DTYPES)}"
            )
    ordered = sorted(tensors, key=lambda tensor: (-_RANKS[tensor.dtype_name], tensor.name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in ordered:
        offsets = [position, position + tensor.nbytes]
        header[tensor.name] = {"dtype": _NAMES[tensor.dtype_name], "shape": list(tensor.shape), "data_offsets": offsets}
        position += tensor.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with LargeFileWriter(path) as stream:
        stream.write(len(text).to_bytes(LENGTH_BYTES, "little"))
        stream.write(text)
        for tensor in ordered:
            if tensor.filler is not None:
                num_rows, num_values = tensor.shape
                stream.write_rows((num_rows, num_values), bits_dtype(tensor.dtype_name), tensor.filler())
                continue
            for bits in tensor.checked_blocks():
                stream.write(bits.reshape(-1).data)
    return stream.digest
