"""A tensor that is read only when it is needed: what readers, mapping tables and writers pass to each other.

Whole checkpoints flow through a conversion as lists of these, so the memory in use is that of the tensor at hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class LazyTensor:
    """Name, shape and dtype of a tensor, and how to get its values.

    Attributes:
        read: gives a contiguous tensor of that shape and dtype on the CPU and keeps no hold of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> LazyTensor:
        """A tensor that is already in memory."""
        return cls(name, tuple(tensor.shape), tensor.dtype, lambda: tensor.detach().contiguous())

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def renamed(self, name: str) -> LazyTensor:
        """The same values under another name."""
        return replace(self, name=name)


def read_span(path: Path, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor whose values lie contiguously in a file.

    Its pages are mapped for it alone, come from the file when they are touched, and go with it.  Writing to it changes
    no file.

    Raises:
        ValueError: if the file ends before the tensor does.
    """
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    if not count:
        return torch.empty(shape, dtype=dtype)
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as stream:
        missing = offset + nbytes - path.stat().st_size
        if missing > 0:
            raise ValueError(f"{path} is truncated: it ends {missing} bytes before a tensor does; copy or download it again")
        pages = mmap.mmap(stream.fileno(), offset + nbytes - start, offset=start, access=mmap.ACCESS_COPY)
    # The kernel reads ahead of the first touch, which matters on network file systems.
    pages.madvise(mmap.MADV_SEQUENTIAL)
    pages.madvise(mmap.MADV_WILLNEED)
    if offset % dtype.itemsize:  # old safetensors headers end anywhere
        return torch.frombuffer(pages, dtype=torch.uint8, count=nbytes, offset=offset - start).clone().view(dtype).view(shape)
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=offset - start).view(shape)


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The values of a contiguous tensor as bytes, without a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def counted(tensors: Iterable[LazyTensor], advance: Callable[[int], object]) -> Iterator[LazyTensor]:
    """The same tensors, each of which reports its bytes when it is read."""
    for tensor in tensors:
        yield replace(tensor, read=partial(_read_and_report, tensor, advance))


def _read_and_report(tensor: LazyTensor, advance: Callable[[int], object]) -> Tensor:
    values = tensor.read()
    advance(tensor.nbytes)
    return values


def return_freed_memory() -> None:
    """Let glibc give every large block back to the system when it is freed.

    By default it learns from the first one to keep them, and the holes between the tensors of each layer add up.
    """
    mmap_threshold, nbytes = -3, 1 << 20  # the constant M_MMAP_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(mmap_threshold, nbytes)
