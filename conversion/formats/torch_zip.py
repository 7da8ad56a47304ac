"""What `torch.save` wrote, seen without torch and without running code: names, shapes, dtypes, and where values lie.

A stream is a zip archive of a small pickle and one stored entry per tensor storage.  `pytorch_model.bin` is one such stream; a
distributed checkpoint is many, one after another in each of its files.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversion.formats.dtypes import DTYPE_BYTES
from conversion.formats.inert_pickle import Record, load_inert
from conversion.formats.pickle_names import STORAGES
from conversion.formats.stored_zip import StoredZip, read_archive

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
            archive = read_archive(io.BufferedReader(FileWindow(file, start, size)), size)
            found = load_inert(archive.pickle())
            return TorchFile(path, start, found.content, found.names, _storages(archive, start), size)
    except OSError:
        raise
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise ValueError(f"{path} is corrupt or truncated ({error!r}); copy or download it again") from error


def _storages(archive: StoredZip, start: int) -> dict[str, tuple[int, int]]:
    found = {name.removeprefix("data/"): entry for name, entry in archive.entries.items() if name.startswith("data/")}
    return {key: (start + archive.begin(entry), entry.file_size) for key, entry in found.items()}


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


class FileWindow(io.RawIOBase):
    """A stretch of an open file as a file of its own."""

    def __init__(self, file: Any, start: int, length: int) -> None:
        super().__init__()
        self._file, self._start, self._length, self._position = file, start, length, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move within the stretch."""
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if position < 0:
            raise OSError(f"position {position}")
        self._position = position
        return position

    def tell(self) -> int:
        """Position within the stretch."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read up to the end of the stretch."""
        self._file.seek(self._start + self._position)
        count: int = self._file.readinto(memoryview(buffer)[: max(self._length - self._position, 0)])
        self._position += count
        return count
