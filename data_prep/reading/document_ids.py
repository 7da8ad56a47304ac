"""Document ids: their hashes on disk, shard by shard, and ids that are used twice."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.artifacts import written_aside


def id_hash(identity: str) -> int:
    """64 bits of a document's id."""
    return int(xxhash.xxh3_128_intdigest(identity.encode())) >> 64


class DocumentIds:
    """Hash of the id and line of each document of a shard, while it is read: 16 bytes a document."""

    def __init__(self) -> None:
        self._numbers = array("Q")

    def add(self, identity: str, line: int) -> None:
        """Note a document.

        Args:
            identity: its id, as JSON.
        """
        self._numbers.append(id_hash(identity))
        self._numbers.append(line)

    def save(self, path: Path) -> None:
        """Write (num_documents, 2) for `duplicate_ids`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as file:
            np.save(file, np.frombuffer(self._numbers, np.uint64).reshape(-1, 2))


def duplicate_ids(shards: Sequence[tuple[Path, Path]]) -> list[str]:
    """A sentence for each id that was used before; 9 bytes of memory a document, and 16 for each of one shard.

    Args:
        shards: file of (hash of the id, line) and the input it is of.
    """
    again = _used_again([ids for ids, _ in shards])
    if not len(again):
        return []
    places: dict[int, list[tuple[int, int]]] = {}  # in the order of the text
    for shard, (ids, _) in enumerate(shards):
        table = np.load(ids)
        for identity, line in table[np.isin(table[:, 0], again)].tolist():
            places.setdefault(identity, []).append((shard, line))
    pairs = sorted((later, earlier) for found in places.values() for earlier, later in pairwise(found))
    return [
        f"{shards[b][1]}, line {b_line} has the same id as {shards[a][1]}, line {a_line} ({len(pairs)} in all);"
        " give each document its own id, or keep them with --skip-bad"
        for (b, b_line), (a, a_line) in pairs
    ]


def _used_again(paths: Sequence[Path]) -> NDArray[np.uint64]:
    """(num_ids,) hashes that are there twice or more, each once."""
    sizes = [len(np.load(path, mmap_mode="r")) for path in paths]
    hashes = np.empty(sum(sizes), np.uint64)
    for path, end, size in zip(paths, accumulate(sizes), sizes):
        hashes[end - size : end] = np.load(path)[:, 0]
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
