"""Ids of documents: their hashes on disk, shard by shard, and those that are used twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.artifacts import digest_bytes


def id_hash(identity: str) -> int:
    """64 bits of a document's id."""
    return int(digest_bytes(identity.encode()).removeprefix("xxh3:")[:16], 16)


def save_ids(path: Path, ids: Sequence[tuple[int, int]]) -> None:
    """Write (hash of the id, line) of each document, for `duplicate_ids`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.array(ids, dtype=np.uint64).reshape(-1, 2))


def duplicate_ids(shards: Sequence[tuple[Path, Path]]) -> list[str]:
    """A sentence for each id that was used before; 16 bytes of memory a document.

    Args:
        shards: file of (hash of the id, line) and the input it is of.
    """
    tables = [np.load(ids) for ids, _ in shards]
    owner = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    if not len(owner):
        return []
    hashes, lines = np.concatenate(tables).T
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    pairs = sorted((int(order[at + 1]), int(order[at])) for at in again)
    return [
        f"{shards[owner[b]][1]}, line {lines[b]} has the same id as {shards[owner[a]][1]}, line {lines[a]} ({len(pairs)} in all);"
        " give each document its own id, or keep them with --skip-bad"
        for b, a in pairs
    ]
