"""What `torch.save` wrote, seen without torch and without running code: names, shapes, dtypes, and the tensors where they lie.

A stream is a zip archive of a small pickle and one stored entry per tensor storage.  `pytorch_model.bin` is one such stream; a
distributed checkpoint is many, one after another in each of its files.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.artifacts import DigestingWriter
from conversion.formats.dtypes import DTYPE_BYTES
from conversion.formats.inert_pickle import Record, load_inert, require_light_parts
from conversion.formats.large_file import LargeFileWriter
from conversion.formats.lazy_tensor import Bits, FileSpan, LazyTensor, read_span
from conversion.formats.pickle_names import STORAGES, TENSORS, unknown_names
from conversion.formats.plain_pickle import Call, Global, Outside, dump
from conversion.formats.stored_zip import StoredZipWriter, pickle_in, read_entries

_NUMBERS = {"float64": "d", "float32": "f", "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B", "bool": "?"}
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a stream: a view of a storage, whose offset and strides count numbers."""

    shape: tuple[int, ...]
    dtype: str
    storage: str
    offset: int
    strides: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        """Whether its values lie one after another."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def end(self) -> int:
        """One past the last number of the storage that it reaches."""
        if 0 in self.shape:
            return self.offset
        return self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)) + 1


@dataclass(frozen=True)
class TorchFile:
    """A saved object.

    Attributes:
        start: where the stream begins in the file, in bytes.
        content: dictionaries, lists and numbers as they are; tensors and objects as records.
        names: classes and functions that loading it would call.
        storages: where each storage begins in the file, and its size in bytes; the key is that of its tensors.
        size: of the stream in bytes.
    """

    path: Path
    start: int
    content: Any
    names: list[str]
    storages: dict[str, tuple[int, int]]
    size: int

    def tensors(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of the tensors of a dictionary."""
        found = {name: stored_tensor(value) for name, value in self.content.items()} if isinstance(self.content, dict) else {}
        return {name: (tensor.shape, tensor.dtype) for name, tensor in found.items() if tensor is not None}

    def storage(self, key: str) -> tuple[int, int]:
        """Where a storage begins in the file, and its size in bytes.

        Raises:
            ValueError: if there is no such storage.
        """
        if key not in self.storages:
            raise ValueError(f"it has no storage {key}")
        return self.storages[key]

    def number(self, value: Any) -> float | int | None:
        """The value of a number, perhaps as a tensor of one; None for anything else."""
        if isinstance(value, bool | int | float):
            return value
        tensor = stored_tensor(value)
        if tensor is None or tensor.shape not in ((), (1,)) or tensor.dtype not in _NUMBERS:
            return None
        try:
            begin, _ = self.storage(tensor.storage)
            with open(self.path, "rb") as stream:
                stream.seek(begin)
                number: float | int = struct.unpack(f"<{_NUMBERS[tensor.dtype]}", stream.read(DTYPE_BYTES[tensor.dtype]))[0]
        except (OSError, ValueError, struct.error):
            return None
        return number


def read_torch_file(path: Path, *, start: int = 0, length: int | None = None) -> TorchFile | None:
    """The object in a file, or in a stretch of it; None for the form from before 2020, which must be read whole.

    Raises:
        ValueError: if it is corrupt or truncated.
    """
    try:
        with open(path, "rb") as file:
            if file.seek(start) == start and file.read(2) != b"PK":
                return None
            size = path.stat().st_size - start if length is None else length
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[start : start + size]
            if len(data) < size:
                raise ValueError("it ends before it should")
            entries = read_entries(data)
            found = load_inert(pickle_in(data, entries))
            storages = {
                name.removeprefix("data/"): (start + begin, nbytes) for name, (begin, nbytes) in entries.items() if name.startswith("data/")
            }
            return TorchFile(path, start, found.content, found.names, storages, size)
    except OSError:
        raise
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise ValueError(f"{path} is corrupt or truncated ({error!r}); copy or download it again") from error


def stored_tensor(value: Any) -> StoredTensor | None:
    """The tensor that a record of a pickle stands for, perhaps as a parameter; None for anything else."""
    if isinstance(value, Record) and value.called == "torch._utils._rebuild_parameter" and value.args:
        value = value.args[0]
    if not isinstance(value, Record) or value.called not in _TENSORS or len(value.args) < 4:
        return None
    storage, offset, shape, strides = value.args[:4]
    if not isinstance(storage, tuple) or len(storage) < 3 or not isinstance(storage[2], str):
        return None
    if not _are_sizes((offset,)) or not _are_sizes(shape) or not _are_sizes(strides):
        return None
    kind = getattr(storage[1], "called", "").removeprefix("torch.")
    dtype = STORAGES.get(kind) or next((arg for arg in value.args[4:] if isinstance(arg, str) and arg in DTYPE_BYTES), None)
    if dtype is None or len(shape) != len(strides):
        return None
    return StoredTensor(shape, dtype, storage[2], offset, strides)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and value >= 0 for value in values)


def read_state_dict(path: Path) -> list[LazyTensor]:
    """The tensors of a saved state dict.

    Raises:
        ValueError: if it is corrupt, needs code to be loaded, or is not a dictionary of tensors.
    """
    file = _open(path)
    return _read_old_state_dict(path) if file is None else tensors_of(file, file.content)


def tensors_of(file: TorchFile, content: Any) -> list[LazyTensor]:
    """The tensors of a state dict that is, or lies in, what a file holds.

    Raises:
        ValueError: if it is not a dictionary of tensors, or a tensor is larger than what lies there.
    """
    path = file.path
    tensors = {name: stored_tensor(value) for name, value in content.items()} if isinstance(content, dict) else {None: None}
    if not all(tensors.values()):
        raise _no_state_dict(path)
    return [_lazy_tensor(file, str(name), tensor) for name, tensor in tensors.items() if tensor is not None]


def read_tensor(path: Path, *, start: int, length: int) -> LazyTensor | None:
    """The one tensor of a stretch of a file; None if something else lies there.

    Raises:
        ValueError: if it is corrupt or needs code to be loaded.
    """
    found = find_tensor(path, start=start, length=length)
    return found.tensor("") if isinstance(found, FileSpan) else found


def find_tensor(path: Path, *, start: int, length: int) -> FileSpan | LazyTensor | None:
    """The same as where it lies; as `read_tensor` gives it where its values do not lie one after another."""
    file = _open(path, start=start, length=length)
    tensor = stored_tensor(file.content) if file is not None else None
    return _found(file, "", tensor) if file is not None and tensor is not None else None


def _open(path: Path, **stretch: int) -> TorchFile | None:
    try:
        file = read_torch_file(path, **stretch)
    except ValueError as error:
        raise _corrupt(path) from error
    if file is not None:
        _require_safe(path, unknown_names(file.names, TENSORS))
    return file


def _lazy_tensor(file: TorchFile, name: str, tensor: StoredTensor) -> LazyTensor:
    found = _found(file, name, tensor)
    return found.tensor(name) if isinstance(found, FileSpan) else found


def _found(file: TorchFile, name: str, tensor: StoredTensor) -> FileSpan | LazyTensor:
    width = DTYPE_BYTES[tensor.dtype]
    try:
        begin, nbytes = file.storage(tensor.storage)
        if tensor.end * width > nbytes:
            raise ValueError(f"{name} is larger than its storage")
        if math.prod(tensor.shape) * width > file.size:  # strides of 0 would let one number stand for any amount
            raise ValueError(f"{name} is larger than its file")
    except (ValueError, OSError) as error:
        raise _corrupt(file.path) from error
    if tensor.is_contiguous:
        return FileSpan(file.path, begin + tensor.offset * width, tensor.shape, tensor.dtype)
    return LazyTensor(name, tensor.shape, tensor.dtype, partial(_read_strided, file.path, begin, tensor))


def _read_strided(path: Path, begin: int, tensor: StoredTensor) -> Bits:
    whole = read_span(path, begin, (tensor.end,), tensor.dtype)
    strides = [stride * whole.itemsize for stride in tensor.strides]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(whole[tensor.offset :], tensor.shape, strides))


def _read_old_state_dict(path: Path) -> list[LazyTensor]:
    """Files from before 2020 are not archives and can only be read whole, by torch."""
    import torch

    try:
        require_light_parts(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch raises for a damaged file is anybody's guess
        _require_safe(path, re.findall(r"GLOBAL (\S+)", str(error)))
        raise _corrupt(path) from error
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise _no_state_dict(path)
    return [LazyTensor.of(name, tensor) for name, tensor in content.items()]


def _require_safe(path: Path, unsafe: Iterable[str]) -> None:
    if name := next(iter(unsafe), None):
        raise ValueError(
            f"{path} asks to run {name} when it is loaded, which is not safe; convert it to safetensors where you trust its source"
        )


def _corrupt(path: Path) -> ValueError:
    return ValueError(f"{path} is corrupt or truncated; copy or download it again")


def _no_state_dict(path: Path) -> ValueError:
    return ValueError(f"{path} is not a dictionary of tensors; expected a model's state dict")


# -- writing what `torch.load` reads, without torch: plain values, or one tensor -----------------------------------------

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
