"""A tensor that is read only when it is needed: what readers, mapping tables and writers pass to each other.

Whole checkpoints flow through a conversion as lists of these, so the memory in use is that of the tensor at hand.  A conversion
moves values and never computes with them, so what it handles are bits: numpy integers as wide as the numbers they stand for.  That
also spares it importing torch, which takes longer than converting a gigabyte.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.allocation import MAPPED_BYTES
from conversion.formats.dtypes import DTYPE_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Bits = np.ndarray[Any, Any]
FillRows = Callable[[int, Bits], None]
"""Writes the rows of a matrix from a number on into (some_rows, size), as bits."""
_BLOCK_BYTES = 1 << 20  # is in the processor's cache still when it is checked, hashed and copied after reading


@dataclass(frozen=True)
class LazyTensor:
    """Name, shape and dtype of a tensor, and how to get its values.

    Attributes:
        dtype_name: torch's name, one of DTYPE_BYTES.
        bits: gives the values as integers of the dtype's width, contiguous and of that shape, and keeps no hold of them.
        rows: gives those from one row to before another alone; None where that is no cheaper than the whole.
        blocks: gives all of them in order, some rows at a time, where they are made so; None elsewhere.
        filler: of a matrix whose rows are made anywhere, prepares what writes those from a number on into memory that it is given; None elsewhere.
    """

    name: str
    shape: tuple[int, ...]
    dtype_name: str
    bits: Callable[[], Bits]
    rows: Callable[[int, int], Bits] | None = None
    blocks: Callable[[], Iterator[Bits]] | None = None
    filler: Callable[[], FillRows] | None = None

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> LazyTensor:
        """A tensor, of any shape, that is already in memory."""
        return cls.computed(name, tuple(tensor.shape), tensor.dtype, lambda: tensor)

    @classmethod
    def computed(cls, name: str, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Tensor]) -> LazyTensor:
        """A tensor, of any shape, that is made when it is read, by torch on the CPU: `make` gives it as `shape` and `dtype` say."""
        return cls(name, shape, str(dtype).removeprefix("torch."), lambda: bits_of(make()))

    @classmethod
    def of_blocks(cls, name: str, shape: tuple[int, ...], dtype: torch.dtype, blocks: Callable[[], Iterator[Tensor]]) -> LazyTensor:
        """A tensor that is made some rows at a time, by torch on the CPU; each block is (some_rows, ...), the rest as in `shape`."""
        return cls.of_bits_blocks(name, shape, str(dtype).removeprefix("torch."), lambda: map(bits_of, blocks()))

    @classmethod
    def of_bits_blocks(cls, name: str, shape: tuple[int, ...], dtype_name: str, blocks: Callable[[], Iterator[Bits]]) -> LazyTensor:
        """A tensor that is made some rows at a time; each block is (some_rows, ...), the rest as in `shape`, and (1,) of a scalar."""
        return cls(name, shape, dtype_name, partial(_joined, blocks, shape, dtype_name), blocks=blocks)

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
        """The values as a tensor, of any shape; writing to it changes no file."""
        import torch

        return torch.from_numpy(self.bits()).view(self.dtype)

    def checked_blocks(self) -> Iterator[Bits]:
        """The values in order, in blocks of rows where they can be had so, (some_rows, ...), held to what was said of them."""
        num_rows = 0
        for bits in self._blocks():
            assert bits.shape[1:] == self.shape[1:] and bits.flags.c_contiguous, self.name
            assert bits.dtype.itemsize == DTYPE_BYTES[self.dtype_name], self.name
            num_rows += len(bits) if self.shape else 1
            yield bits
        assert num_rows == (self.shape[0] if self.shape else 1), self.name

    def _blocks(self) -> Iterator[Bits]:
        if self.blocks is not None:
            return self.blocks()
        rows = self.rows
        if rows is None or self.nbytes <= _BLOCK_BYTES:
            return iter([self.bits()])
        step = max(1, _BLOCK_BYTES * self.shape[0] // self.nbytes)
        return (rows(start, min(start + step, self.shape[0])) for start in range(0, self.shape[0], step))

    def rows_at(self, numbers: Sequence[int]) -> Bits:
        """Rows of the given numbers, (len(numbers), ...), at least one; read alone where that is cheaper than the whole."""
        rows = self.rows
        return self.bits()[list(numbers)] if rows is None else np.concatenate([rows(number, number + 1) for number in numbers])

    def row_range(self, name: str, start: int, stop: int) -> LazyTensor:
        """A tensor of some of the rows."""
        shape = (stop - start, *self.shape[1:])
        rows = self.rows
        if rows is None:
            return LazyTensor(name, shape, self.dtype_name, lambda: self.bits()[start:stop])
        return LazyTensor(name, shape, self.dtype_name, lambda: rows(start, stop), lambda first, last: rows(start + first, start + last))

    @classmethod
    def concatenated(cls, name: str, parts: Sequence[LazyTensor]) -> LazyTensor:
        """Tensors of one dtype and width, one above the other."""
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        rows = partial(_rows_of_parts, parts) if all(part.rows for part in parts) else None
        return cls(name, shape, parts[0].dtype_name, lambda: np.concatenate([part.bits() for part in parts]), rows)

    @classmethod
    def stacked(cls, name: str, parts: Sequence[LazyTensor]) -> LazyTensor:
        """Tensors of one dtype and shape as the rows of one."""

        def rows(start: int, stop: int) -> Bits:
            return np.stack([part.bits() for part in parts[start:stop]])

        return cls(name, (len(parts), *parts[0].shape), parts[0].dtype_name, lambda: rows(0, len(parts)), rows)

    def renamed(self, name: str) -> LazyTensor:
        """The same values under another name."""
        return replace(self, name=name)


def _rows_of_parts(parts: Sequence[LazyTensor], start: int, stop: int) -> Bits:
    found = []
    for part in parts:
        first, last = max(start, 0), min(stop, part.shape[0])
        if first < last:
            assert part.rows is not None
            found.append(part.rows(first, last))
        start, stop = start - part.shape[0], stop - part.shape[0]
    return found[0] if len(found) == 1 else np.concatenate(found)


def bits_of(tensor: Tensor) -> Bits:
    """The values of a tensor, of any shape, as integers of the same width, without a copy where it is contiguous."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    bits: Bits = tensor.detach().contiguous().view(integers).numpy()
    return bits


def bits_dtype(dtype_name: str) -> np.dtype[Any]:
    """The integers that stand for numbers of a dtype."""
    return np.dtype(f"i{DTYPE_BYTES[dtype_name]}")


@dataclass(frozen=True)
class FileSpan:
    """A tensor that lies contiguously in a file, from the byte `offset` on."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype_name: str

    def bits(self) -> Bits:
        """Its values, see `read_span`."""
        return read_span(self.path, self.offset, self.shape, self.dtype_name)

    def rows(self, start: int, stop: int) -> Bits:
        """Those of some rows alone, (num_rows, ...)."""
        row_bytes = math.prod(self.shape[1:]) * DTYPE_BYTES[self.dtype_name]
        return read_span(self.path, self.offset + start * row_bytes, (stop - start, *self.shape[1:]), self.dtype_name)

    def part(self, slices: Sequence[slice]) -> Bits:
        """Those within a slice of each axis, of any shape; the axes before the first of several indices cost nothing, as one of a stack of layers."""
        axis = next((axis for axis, part in enumerate(slices) if part.stop - part.start != 1), len(slices) - 1)
        if axis < 0:
            return self.bits()
        first = 0
        for size, part in zip(self.shape, slices[: axis + 1], strict=False):
            first = first * size + part.start
        merged = replace(self, shape=(math.prod(self.shape[: axis + 1]), *self.shape[axis + 1 :]))
        rows = merged.rows(first, first + slices[axis].stop - slices[axis].start)[(slice(None), *slices[axis + 1 :])]
        return rows.reshape((1,) * axis + rows.shape)

    def tensor(self, name: str) -> LazyTensor:
        """To be read when it is needed."""
        return LazyTensor(name, self.shape, self.dtype_name, self.bits, self.rows if self.shape else None)


def read_span(path: Path, offset: int, shape: tuple[int, ...], dtype_name: str) -> Bits:
    """The values of a tensor, of any shape, that lie contiguously in a file from the byte `offset` on, as integers of the dtype's width.

    A large one's pages are mapped for it alone, come from the file when they are touched, and go with it; others are copied.  Writing
    to either changes no file.

    Raises:
        ValueError: if the file ends before the tensor does.
    """
    dtype = bits_dtype(dtype_name)
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    if not count:
        return np.empty(shape, dtype)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if nbytes < MAPPED_BYTES:
            values = np.empty(count, dtype)
            missing = nbytes - _read_all(file, values.data.cast("B"), offset)
        else:
            start = offset - offset % mmap.ALLOCATIONGRANULARITY
            missing = offset + nbytes - os.fstat(file).st_size
            if missing <= 0:
                pages = mmap.mmap(file, offset + nbytes - start, offset=start, access=mmap.ACCESS_COPY)
                # The kernel reads ahead of the first touch, which matters on network file systems.
                pages.madvise(mmap.MADV_SEQUENTIAL)
                pages.madvise(mmap.MADV_WILLNEED)
                values = np.frombuffer(pages, dtype, count, offset - start)
                values = values if values.flags.aligned else values.copy()  # old safetensors headers end anywhere
    finally:
        os.close(file)
    if missing > 0:
        raise ValueError(f"{path} is truncated: it ends {missing} bytes before a tensor does; copy or download it again")
    return values.reshape(shape)


def _read_all(file: int, memory: memoryview, offset: int) -> int:
    """Fill memory from a place in a file; returns how many bytes there were."""
    done = 0
    while done < len(memory) and (count := os.preadv(file, [memory[done:]], offset + done)):
        done += count
    return done


def lazy_span(name: str, path: Path, offset: int, shape: tuple[int, ...], dtype_name: str) -> LazyTensor:
    """A tensor that lies contiguously in a file, from `offset` on; see `read_span`."""
    return FileSpan(path, offset, shape, dtype_name).tensor(name)


def counted(tensors: Iterable[LazyTensor], advance: Callable[[int], object]) -> Iterator[LazyTensor]:
    """The same tensors, which report the bytes of what is read of them."""
    for tensor in tensors:
        yield replace(
            tensor,
            bits=partial(_read_and_report, tensor.bits, advance),
            rows=tensor.rows and partial(_read_and_report, tensor.rows, advance),
            blocks=None,
            filler=None,
        )


def _read_and_report(read: Callable[..., Bits], advance: Callable[[int], object], *span: int) -> Bits:
    bits = read(*span)
    advance(bits.nbytes)
    return bits


def _joined(blocks: Callable[[], Iterator[Bits]], shape: tuple[int, ...], dtype_name: str) -> Bits:
    values = np.empty(shape or (1,), bits_dtype(dtype_name))
    start = 0
    for block in blocks():
        values[start : start + len(block)] = block
        start += len(block)
    return values.reshape(shape)


def release_pages(values: object) -> None:
    """Give back all pages of the file that an array is mapped from; they come again when they are touched.  Does nothing to anything else.

    What was written to a private mapping would be lost, so it is for arrays that are only read.
    """
    owner = values
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner  # as numpy.frombuffer holds it
    if isinstance(owner, mmap.mmap):
        owner.madvise(mmap.MADV_DONTNEED)
