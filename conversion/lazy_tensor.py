"""A tensor that is read only when it is needed: what readers, mapping tables and writers pass to each other.

Whole checkpoints flow through a conversion as lists of these, so the memory in use is that of the tensor at hand.  A conversion
moves values and never computes with them, so what it handles are bits: numpy integers as wide as the numbers they stand for.  That
also spares it importing torch, which takes longer than converting a gigabyte.
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
from typing import TYPE_CHECKING, Any

import numpy as np

from conversion.dtypes import DTYPE_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Bits = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LazyTensor:
    """Name, shape and dtype of a tensor, and how to get its values.

    Attributes:
        dtype_name: torch's name, one of DTYPE_BYTES.
        bits: gives the values as integers of the dtype's width, contiguous and of that shape, and keeps no hold of them.
        blocks: gives the same values in order, some rows at a time; None where they are at hand anyway.
    """

    name: str
    shape: tuple[int, ...]
    dtype_name: str
    bits: Callable[[], Bits]
    blocks: Callable[[], Iterator[Bits]] | None = None

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> LazyTensor:
        """A tensor that is already in memory."""
        return cls.computed(name, tuple(tensor.shape), tensor.dtype, lambda: tensor)

    @classmethod
    def computed(cls, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Tensor]) -> LazyTensor:
        """A tensor that is made when it is read, by torch on the CPU."""
        return cls(name, shape, str(dtype).removeprefix("torch."), lambda: bits_of(make()))

    @classmethod
    def of_blocks(cls, name: str, shape: tuple[int, ...], dtype: torch.dtype, blocks: Callable[[], Iterator[Tensor]]) -> LazyTensor:
        """A tensor that is made some rows at a time, by torch on the CPU."""
        whole = cls.computed(name, shape, dtype, partial(_joined, blocks, shape, dtype))
        return replace(whole, blocks=lambda: map(bits_of, blocks()))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype itself."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype_name]

    def read(self) -> Tensor:
        """The values as a tensor; writing to it changes no file."""
        import torch

        return torch.from_numpy(self.bits()).view(self.dtype)

    def checked_bits(self) -> Bits:
        """The values, held to what was said of them."""
        return self._checked(self.bits(), self.shape)

    def checked_blocks(self) -> Iterator[Bits]:
        """The same in order, in as many pieces as they come in."""
        if self.blocks is None:
            yield self.checked_bits()
            return
        num_rows = 0
        for bits in self.blocks():
            num_rows += len(bits)
            yield self._checked(bits, (len(bits), *self.shape[1:]))
        assert num_rows == self.shape[0], self.name

    def _checked(self, bits: Bits, shape: tuple[int, ...]) -> Bits:
        assert bits.shape == shape and bits.dtype.itemsize == DTYPE_BYTES[self.dtype_name] and bits.flags.c_contiguous, self.name
        return bits

    def renamed(self, name: str) -> LazyTensor:
        """The same values under another name."""
        return replace(self, name=name)


def bits_of(tensor: Tensor) -> Bits:
    """The values of a tensor as integers of the same width, without a copy where it is contiguous."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    bits: Bits = tensor.detach().contiguous().view(integers).numpy()
    return bits


def bits_dtype(dtype_name: str) -> np.dtype[Any]:
    """The integers that stand for numbers of a dtype."""
    return np.dtype(f"i{DTYPE_BYTES[dtype_name]}")


def read_span(path: Path, offset: int, shape: tuple[int, ...], dtype_name: str) -> Bits:
    """The values of a tensor that lie contiguously in a file.

    Its pages are mapped for it alone, come from the file when they are touched, and go with it.  Writing to it changes
    no file.

    Raises:
        ValueError: if the file ends before the tensor does.
    """
    dtype = bits_dtype(dtype_name)
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    if not count:
        return np.empty(shape, dtype)
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as stream:
        missing = offset + nbytes - path.stat().st_size
        if missing > 0:
            raise ValueError(f"{path} is truncated: it ends {missing} bytes before a tensor does; copy or download it again")
        pages = mmap.mmap(stream.fileno(), offset + nbytes - start, offset=start, access=mmap.ACCESS_COPY)
    # The kernel reads ahead of the first touch, which matters on network file systems.
    pages.madvise(mmap.MADV_SEQUENTIAL)
    pages.madvise(mmap.MADV_WILLNEED)
    values = np.frombuffer(pages, dtype, count, offset - start).reshape(shape)
    return values if values.flags.aligned else values.copy()  # old safetensors headers end anywhere


def counted(tensors: Iterable[LazyTensor], advance: Callable[[int], object]) -> Iterator[LazyTensor]:
    """The same tensors, each of which reports its bytes when it is read."""
    for tensor in tensors:
        yield replace(tensor, bits=partial(_read_and_report, tensor, advance), blocks=None)


def _joined(blocks: Callable[[], Iterator[Tensor]], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    import torch

    values = torch.empty(shape, dtype=dtype)
    start = 0
    for block in blocks():
        values[start : start + len(block)] = block
        start += len(block)
    return values


def _read_and_report(tensor: LazyTensor, advance: Callable[[int], object]) -> Bits:
    bits = tensor.bits()
    advance(tensor.nbytes)
    return bits


def return_freed_memory() -> None:
    """Let glibc give every large block back to the system when it is freed.

    By default it learns from the first one to keep them, and the holes between the tensors of each layer add up.
    """
    mmap_threshold, nbytes = -3, 1 << 20  # the constant M_MMAP_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(mmap_threshold, nbytes)
