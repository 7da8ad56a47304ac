"""The format of `torch.save`: where each tensor of a stream lies, found without running the code that a pickle can hold.

A stream is a zip archive of a small pickle and one stored entry per tensor storage.  `pytorch_model.bin` is one such stream;
a distributed checkpoint is many, one after another in each of its files.
"""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conversion.lazy_tensor import LazyTensor, read_span

_ZIP_MAGIC = b"PK\x03\x04"


def load_places(stream: Any, path: Path) -> Any:
    """What `torch.load` gives, with tensors on the meta device: only the small pickle is read.

    Args:
        stream: an open binary file, at the start of what `torch.save` wrote.
        path: to be named in errors.

    Raises:
        ValueError: if it is corrupt, or needs code to be loaded.
    """
    try:
        is_zip = stream.read(4) == _ZIP_MAGIC
        stream.seek(0)
        # Files from before 2020 are no archives and can only be read whole.
        return torch.load(stream, map_location="meta" if is_zip else "cpu", weights_only=True)
    except Exception as error:  # what torch raises for a damaged file is anybody's guess
        if needed := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"{path} asks to run {needed[1]} when it is loaded, which is not safe; convert it to safetensors where you trust its source"
            ) from error
        raise ValueError(f"{path} is corrupt or truncated; copy or download it again") from error


def read_state_dict(path: Path) -> list[LazyTensor]:
    """The tensors of a saved state dict.

    Raises:
        ValueError: if it is corrupt, needs code to be loaded, or is no dictionary of tensors.
    """
    with open(path, "rb") as stream:
        content = load_places(stream, path)
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} is no dictionary of tensors; expected a model's state dict")
    return [place(name, tensor, path) for name, tensor in content.items()]


def place(name: str, tensor: Tensor, path: Path, *, start: int = 0) -> LazyTensor:
    """The values of a tensor that `load_places` returned.

    Args:
        start: where the stream begins in the file, in bytes.
    """
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if tensor.device.type != "meta":
        return LazyTensor.of(name, tensor)
    storage: Any = tensor.untyped_storage()
    storage_start = start + storage._checkpoint_offset
    if tensor.is_contiguous():
        offset = storage_start + int(tensor.storage_offset()) * dtype.itemsize
        return LazyTensor(name, shape, dtype, partial(read_span, path, offset, shape, dtype))

    def read() -> Tensor:
        whole = read_span(path, storage_start, (storage.nbytes() // dtype.itemsize,), dtype)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).contiguous()

    return LazyTensor(name, shape, dtype, read)


class FileWindow(io.RawIOBase):
    """A stretch of a file as a file of its own."""

    def __init__(self, path: Path, start: int, length: int) -> None:
        super().__init__()
        self._stream = open(path, "rb")  # noqa: SIM115 closed by close()
        self._start, self._length, self._position = start, length, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move within the stretch."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        return self._position

    def tell(self) -> int:
        """Position within the stretch."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read up to the end of the stretch."""
        self._stream.seek(self._start + self._position)
        count = self._stream.readinto(memoryview(buffer)[: max(self._length - self._position, 0)])
        self._position += count
        return count

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        super().close()
