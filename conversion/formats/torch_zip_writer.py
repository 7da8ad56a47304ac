"""Writing what `torch.load` reads, without torch: plain values, or one tensor."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from typing import Any

import numpy as np

from common.artifacts import DigestingWriter
from conversion.formats.large_file import LargeFileWriter
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.pickle_names import STORAGES
from conversion.formats.plain_pickle import Call, Global, Outside, dump
from conversion.formats.stored_zip import LOCAL_HEADER

ALIGNMENT = 64  # of values within their stream, as torch has it, so that they can be used where they lie
_PIECE_BYTES = 4 << 20
_ZIP64_BYTES = 20  # that `zipfile` adds to the header of an entry that may exceed 4 GiB
_STORAGES = {dtype: name for name, dtype in STORAGES.items()}

Writer = DigestingWriter | LargeFileWriter


def save_value(value: Any, stream: Writer) -> None:
    """Write plain values, as `torch.save` would."""
    with zipfile.ZipFile(_Stream(stream), "w") as archive:
        _write(archive, "data.pkl", dump(value))
        _write_versions(archive)


def save_tensor(tensor: LazyTensor, stream: Writer, *, shape: tuple[int, ...] | None = None) -> None:
    """Write one tensor, as `torch.save` would.

    Args:
        shape: to be viewed in.

    Raises:
        ValueError: if the format has no storage for the dtype.
    """
    if tensor.dtype_name not in _STORAGES:
        raise ValueError(f"{tensor.name} is torch.{tensor.dtype_name}, which cannot be saved here; expected one of {', '.join(_STORAGES)}")
    shape = tensor.shape if shape is None else shape
    storage = Outside(("storage", Global("torch", _STORAGES[tensor.dtype_name]), "0", "cpu", math.prod(shape)))
    strides = tuple(math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))
    hooks = Call(Global("collections", "OrderedDict"), ())
    rebuilt = Call(Global("torch._utils", "_rebuild_tensor_v2"), (storage, 0, shape, strides, False, hooks))
    with zipfile.ZipFile(_Stream(stream), "w") as archive:
        _write(archive, "data.pkl", dump(rebuilt))
        _write_parts(archive, "data/0", (block.reshape(-1).view(np.uint8) for block in tensor.checked_blocks()), tensor.nbytes)
        _write_versions(archive)


def _write_versions(archive: zipfile.ZipFile) -> None:
    for name, content in (
        (".format_version", b"1"),
        (".storage_alignment", b"%d" % ALIGNMENT),
        ("byteorder", b"little"),
        ("version", b"3\n"),
    ):
        _write(archive, name, content)


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    _write_parts(archive, name, [content], len(content))


def _write_parts(archive: zipfile.ZipFile, name: str, parts: Iterable[Any], nbytes: int) -> None:
    """One entry, stored, whose content is aligned within the stream."""
    info = zipfile.ZipInfo(f"archive/{name}")
    is_large = nbytes >= 1 << 31
    assert archive.fp is not None
    header = archive.fp.tell() + LOCAL_HEADER.size + len(info.filename) + (_ZIP64_BYTES if is_large else 0)
    padding = -(header + 4) % ALIGNMENT
    info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding  # the mark that torch gives its padding
    info.file_size = nbytes
    with archive.open(info, "w", force_zip64=is_large) as entry:
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                entry.write(part[start : start + _PIECE_BYTES])


class _Stream:
    """A part of a file that is written in one go, counted from its beginning: `zipfile` puts checksums behind, as it cannot go back."""

    def __init__(self, stream: Writer) -> None:
        self._stream, self._start = stream, stream.size

    def write(self, data: Any) -> int:
        return self._stream.write(data)

    def tell(self) -> int:
        return self._stream.size - self._start

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """The file goes on."""
