"""What `torch.save` wrote, seen without torch and without running code: names, shapes, dtypes, and where values lie.

A stream is a zip archive of a small pickle and one stored entry per tensor storage.  `pytorch_model.bin` is one such stream; a
distributed checkpoint is many, one after another in each of its files.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversion.dtypes import DTYPE_BYTES
from conversion.inert_pickle import Record, load_inert

STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
_NUMBERS = {"float64": "d", "float32": "f", "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B", "bool": "?"}
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_HARMLESS = (*_TENSORS, "torch._utils._rebuild_parameter", "torch.storage.UntypedStorage", *(f"torch.{name}" for name in STORAGES))
# What training frameworks put into the part of a checkpoint that is not sharded: state of their own classes.
_FRAMEWORKS = ("torch", "numpy", "megatron", "nemo", "lightning", "pytorch_lightning", "omegaconf", "argparse", "enum", "pathlib", "fiddle")
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip entry: magic, lengths of name and extra field


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
        entries: of the archive, by the last part of their names.
    """

    path: Path
    start: int
    content: Any
    names: list[str]
    entries: dict[str, zipfile.ZipInfo]

    def tensors(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of the tensors of a dictionary."""
        found = {name: stored_tensor(value) for name, value in self.content.items()} if isinstance(self.content, dict) else {}
        return {name: (tensor.shape, tensor.dtype) for name, tensor in found.items() if tensor is not None}

    def storage(self, key: str) -> tuple[int, int]:
        """Where a storage begins in the file, and its size in bytes.

        Raises:
            ValueError: if the archive has no such storage, or it is compressed or beyond the end.
        """
        entry = self.entries.get(key)
        if entry is None or entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"it has no storage {key} that could be read")
        header = self.start + entry.header_offset
        with open(self.path, "rb") as stream:
            stream.seek(header)
            magic, name_bytes, extra_bytes = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size))
            begin = header + LOCAL_HEADER.size + name_bytes + extra_bytes
            if magic != b"PK\x03\x04" or begin + entry.file_size > stream.seek(0, io.SEEK_END):
                raise ValueError(f"its storage {key} is not where its list says")
        return begin, entry.file_size

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
            stream = FileWindow(file, start, path.stat().st_size - start if length is None else length)
            with zipfile.ZipFile(stream) as archive:
                entries = {info.filename.rpartition("/")[2]: info for info in archive.infolist()}
                with archive.open(entries["data.pkl"]) as pickle:
                    return TorchFile(path, start, *load_inert(pickle), entries)
    except OSError:
        raise
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise ValueError(f"{path} is corrupt or truncated ({error!r}); copy or download it again") from error


def unsafe_names(names: Iterable[str], *, is_state_dict: bool) -> list[str]:
    """Those of the names in a pickle that neither tensors nor the state of a training framework need."""
    if is_state_dict:
        return [name for name in names if name not in _HARMLESS]
    return [name for name in names if name.partition(".")[0] not in _FRAMEWORKS]


def stored_tensor(value: Any) -> StoredTensor | None:
    """The tensor that a record of a pickle stands for, perhaps as a parameter; None for anything else."""
    if isinstance(value, Record) and value.called == "torch._utils._rebuild_parameter" and value.args:
        value = value.args[0]
    if not isinstance(value, Record) or value.called not in _TENSORS or len(value.args) < 4:
        return None
    storage, offset, shape, strides = value.args[:4]
    if not isinstance(storage, tuple) or len(storage) < 3 or not _are_sizes((offset,)) or not _are_sizes(shape) or not _are_sizes(strides):
        return None
    kind = getattr(storage[1], "called", "").removeprefix("torch.")
    dtype = STORAGES.get(kind) or next((arg for arg in value.args[4:] if isinstance(arg, str) and arg in DTYPE_BYTES), None)
    if dtype is None or len(shape) != len(strides):
        return None
    return StoredTensor(shape, dtype, str(storage[2]), offset, strides)


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
