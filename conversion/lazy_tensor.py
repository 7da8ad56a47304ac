"""A tensor that is read only when it is needed: what readers, mapping tables and writers pass to each other.

Whole checkpoints flow through a conversion as lists of these, so the memory in use is that of the tensor at hand.
"""

from __future__ import annotations

import math
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
        read: gives a new contiguous tensor of that shape and dtype, on the CPU; called once per use, it keeps nothing.
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

    Read, not mapped: the memory is the caller's to free, and a network file system serves one long read best.

    Raises:
        ValueError: if the file ends before the tensor does.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    content = torch.empty(nbytes, dtype=torch.uint8)
    view = content.numpy().data
    with open(path, "rb", buffering=0) as stream:
        stream.seek(offset)
        done = 0
        while done < nbytes:  # one system call reads at most 2 GiB
            count = stream.readinto(view[done:])
            if not count:
                raise ValueError(f"{path} is truncated: it ends {nbytes - done} bytes before a tensor does; copy or download it again")
            done += count
    return content.view(dtype).view(shape)


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
