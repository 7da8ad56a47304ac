"""Arrays one behind another in one file, each found by its number: how shards of text and ranges of hashes hand each other what they know.

A shard writes a piece for each range, a range writes one for each run of a shard, and the other side reads the piece that is its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.artifacts import written_aside

_NUMBER = np.dtype("<i8")  # of a piece's first element, and last in the file of how many pieces there are


def write_pieces(path: Path, pieces: Iterable[NDArray[Any]]) -> None:
    """Write arrays (num_values,) of one dtype; the file gets its name when it is complete."""
    starts = [0]
    with written_aside(path) as file:
        for piece in pieces:
            file.write(np.ascontiguousarray(piece).data)
            starts.append(starts[-1] + len(piece))
        file.write(np.array([*starts, len(starts) - 1], _NUMBER).data)


def write_grouped(path: Path, values: NDArray[Any], groups: NDArray[np.integer], num_groups: int) -> None:
    """Write the values of each group as a piece, in their order; `values` and `groups` are (num_values,)."""
    ends = np.cumsum(np.bincount(groups, minlength=num_groups))
    write_pieces(path, np.split(values[grouping(groups)], ends[:-1]))


def grouping(groups: NDArray[np.integer]) -> NDArray[np.intp]:
    """(num_values,) the order in which `write_grouped` writes values: `values[grouping(groups)]` are its pieces in a row."""
    return np.argsort(groups, kind="stable")


def read_piece(path: Path, number: int, dtype: DTypeLike) -> NDArray[Any]:
    """One array of a file, (num_values,).

    Raises:
        ValueError: if the file is cut.
    """
    return read_pieces(path, number, number + 1, dtype)


def read_pieces(path: Path, first: int, last: int, dtype: DTypeLike) -> NDArray[Any]:
    """(num_values,) pieces `first` to before `last` of a file, joined; they lie together."""
    dtype = np.dtype(dtype)
    with open(path, "rb", buffering=0) as file:
        table = _table(file.fileno(), path, dtype.itemsize)[0]
        start, end = _numbers(file.fileno(), last - first + 1, table + _NUMBER.itemsize * first)[[0, -1]].tolist()
        found = np.empty(end - start, dtype)
        _read(file.fileno(), found, start * dtype.itemsize)
        return found


def piece_sizes(path: Path) -> NDArray[np.int64]:
    """(num_pieces,) how long each array of a file is, in elements."""
    with open(path, "rb", buffering=0) as file:
        table, num_pieces = _table(file.fileno(), path)
        return np.diff(_numbers(file.fileno(), num_pieces + 1, table))


def _table(descriptor: int, path: Path, itemsize: int | None = None) -> tuple[int, int]:
    """Where the beginnings of the pieces are written, and how many pieces there are."""
    size = os.fstat(descriptor).st_size
    num_elements, num_pieces = _numbers(descriptor, 2, size - 2 * _NUMBER.itemsize).tolist() if size >= 16 else (-1, -1)
    table = size - _NUMBER.itemsize * (num_pieces + 2)
    if num_pieces < 0 or table < 0 or (itemsize is not None and num_elements * itemsize != table):
        raise ValueError(f"{path} is cut or damaged; remove the hidden directory that it lies in, beside the output, and run again")
    return table, num_pieces


def joined(pieces: Sequence[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
    """(num_values,) arrays one behind another, also where there is none."""
    return np.concatenate([np.zeros(0, dtype), *pieces])


def _numbers(descriptor: int, count: int, offset: int) -> NDArray[np.int64]:
    found = np.empty(count, _NUMBER)
    _read(descriptor, found, offset)
    return found


def _read(descriptor: int, into: NDArray[Any], offset: int) -> None:
    view, done = into.view(np.uint8).data, 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        assert count, "the table says that there is more"
        done += count
