"""Which n-grams occur twice or more: found on disk, in memory that does not grow with the text.

The hashes of all n-grams are written to 256 files by their top 8 bits (8 bytes a token of disk); each file is sorted by itself.
Memory: a 256th of the hashes, and those that repeat.  Only these can make a duplicate, so onion's table need hold no
others: that is what its `hashgen` and `hashdup` are for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.deduplication.onion import NUM_PARTS
from data_prep.reading.scanning import Repeated, Scanner
from data_prep.reading.shards import ordered_map

_FLUSH_HASHES = 1 << 21


def find_repeated(scanner: Scanner, paths: Sequence[Path], scratch: Path, *, workers: int) -> Repeated:
    """The n-grams that occur at least twice in all shards together.

    Raises:
        ValueError: if a shard cannot be read.
    """
    parts = scratch / "ngrams"
    parts.mkdir()
    jobs = [(scanner, path, parts) for path in paths]
    for _ in ordered_map(_spill, jobs, workers=workers, name=lambda job: str(job[1])):
        pass
    groups = [sorted(parts.glob(f"{part:03d}_*")) for part in range(NUM_PARTS)]
    repeated = [np.zeros(0, np.uint64), *ordered_map(_repeated_in, groups, workers=workers)]
    parts.rmdir()
    return Repeated.save(np.concatenate(repeated), scratch)


def _spill(job: tuple[Scanner, Path, Path]) -> None:
    """Append the hashes of a shard to this process's files."""
    scanner, path, parts = job
    waiting: list[NDArray[np.uint64]] = []
    for batch in scanner.batches(path):
        waiting.append(batch.scan.hashes)
        if sum(map(len, waiting)) >= _FLUSH_HASHES:
            _append(scanner, waiting, parts)
            waiting = []
    _append(scanner, waiting, parts)


def _append(scanner: Scanner, waiting: list[NDArray[np.uint64]], parts: Path) -> None:
    if not waiting:
        return
    grouped, starts = scanner.engine.partition(np.concatenate(waiting))
    for part, (start, end) in enumerate(zip(starts.tolist(), starts.tolist()[1:])):
        if end > start:
            with open(parts / f"{part:03d}_{os.getpid()}", "ab") as file:
                grouped[start:end].tofile(file)


def _repeated_in(files: Sequence[Path]) -> NDArray[np.uint64]:
    hashes = np.concatenate([np.zeros(0, np.uint64), *(np.fromfile(file, np.uint64) for file in files)])
    for file in files:
        file.unlink()
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
