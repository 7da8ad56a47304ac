"""Writing what `torch.load` reads, without torch: plain values, or one tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from common.artifacts import DigestingWriter
from conversion.formats.large_file import LargeFileWriter
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.pickle_names import STORAGES
from conversion.formats.plain_pickle import Call, Global, Outside, dump
from conversion.formats.stored_zip import StoredZipWriter

ALIGNMENT = 64  # of values within their stream, as torch has it, so that they can be used where they lie
_STORAGES = {dtype: name for name, dtype in STORAGES.items()}

Writer = DigestingWriter | LargeFileWriter


def save_value(value: Any, stream: Writer) -> None:
    """Write plain values, as `torch.save` would."""
    archive = StoredZipWriter(stream, ALIGNMENT)
    _write(archive, "data.pkl", dump(value))
    _write_versions(archive)
    archive.end()


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
    archive = StoredZipWriter(stream, ALIGNMENT)
    _write(archive, "data.pkl", dump(rebuilt))
    archive.add("archive/data/0", (block.reshape(-1).view(np.uint8).data for block in tensor.checked_blocks()), tensor.nbytes)
    _write_versions(archive)
    archive.end()


def _write_versions(archive: StoredZipWriter) -> None:
    for name, content in (
        (".format_version", b"1"),
        (".storage_alignment", b"%d" % ALIGNMENT),
        ("byteorder", b"little"),
        ("version", b"3\n"),
    ):
        _write(archive, name, content)


def _write(archive: StoredZipWriter, name: str, content: bytes) -> None:
    archive.add(f"archive/{name}", [content], len(content))
