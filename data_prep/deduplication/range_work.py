"""The tasks of deduplication by ranges of hashes: the files they exchange, and the largest size of a task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.artifacts import written_aside
from data_prep.deduplication.decisions import DecisionLog
from data_prep.sharing.scanning import Scanner

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
        assert count, "the table lists more"
        done += count


# Bytes at the peak of a task, counted from its arrays and measured (tests/data_prep/deduplication/test_dedup_ranges.py, docs/data.md).
RUN_BYTES_A_TOKEN = 72
RANGE_BYTES_A_TOKEN = 56
SPILLED_BYTES_A_TOKEN = 13  # of disk: hashes and their order, then where repeated ones lie
_MAX_BITS = 16
_LEAST_RUN_TOKENS = 1 << 12


@dataclass(frozen=True)
class RangeWork:
    """Deduplication cut into runs of text and ranges of hashes, each small enough for the memory of a worker.

    Attributes:
        directory: of what the tasks leave for each other.
        log: of what is decided.
        bits: the top bits of a hash are the number of its range.
        run_tokens: after so many tokens a shard begins a new run, at the end of a batch of documents.
        state: of all input files together; what was made of others is not used.
    """

    scanner: Scanner
    paths: tuple[Path, ...]
    directory: Path
    log: DecisionLog
    bits: int
    run_tokens: int
    same_documents: bool = False
    state: str = ""

    @property
    def num_ranges(self) -> int:
        """Ranges of hashes."""
        return 1 << self.bits

    def of_shard(self, shard: int) -> Path:
        """What is known of a file of text."""
        return self.directory / f"shard_{shard:06d}"

    def of_run(self, run: Run) -> Path:
        """What is known of a run, as the beginning of file names."""
        return self.of_shard(run.shard) / f"run_{run.number:05d}"

    def of_range(self, number: int) -> Path:
        """What is known of a range of hashes."""
        return self.directory / f"range_{number:05d}"


@dataclass(frozen=True)
class Run:
    """A stretch of whole documents of a shard."""

    shard: int
    number: int


@dataclass(frozen=True)
class ShardShape:
    """How much a file of text holds."""

    num_documents: int
    num_paragraphs: int
    num_tokens: int
    num_runs: int
    text_bytes: int


@dataclass(frozen=True)
class Layout:
    """Where each shard begins in the whole text.

    Attributes:
        runs: of all shards, in order; a run's place here is its number in the files of a range.
        first_paragraphs, first_documents, first_runs: numbers of the first of each shard, and of all behind the last.
    """

    runs: tuple[Run, ...]
    first_paragraphs: tuple[int, ...]
    first_documents: tuple[int, ...]
    first_runs: tuple[int, ...]

    @classmethod
    def of(cls, shapes: Sequence[ShardShape]) -> Layout:
        """Of shards in order."""
        runs = tuple(Run(shard, number) for shard, shape in enumerate(shapes) for number in range(shape.num_runs))
        counts = ((shape.num_paragraphs, shape.num_documents, shape.num_runs) for shape in shapes)
        paragraphs, documents, first_runs = [0], [0], [0]
        for num_paragraphs, num_documents, num_runs in counts:
            paragraphs.append(paragraphs[-1] + num_paragraphs)
            documents.append(documents[-1] + num_documents)
            first_runs.append(first_runs[-1] + num_runs)
        return cls(runs, tuple(paragraphs), tuple(documents), tuple(first_runs))


def cut_for(memory_bytes: int, num_tokens: int) -> tuple[int, int]:
    """(bits, run_tokens) with which no task needs much more than so much memory.

    Args:
        num_tokens: of the whole text, about.
    """
    ranges = max(2, -(-num_tokens * RANGE_BYTES_A_TOKEN // max(memory_bytes, 1)))
    bits = min(_MAX_BITS, max(1, (ranges - 1).bit_length()))
    return bits, max(_LEAST_RUN_TOKENS, memory_bytes // RUN_BYTES_A_TOKEN)
