"""Samples of removed text: a number for each reason, selected by hash, so that the number of workers does not change them."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from data_prep.sharing.shards import JsonLinesWriter

MAX_CHARACTERS = 2000


class Samples:
    """The `number` records of each reason whose keys have the smallest hashes."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._kept: dict[str, list[tuple[int, str, int, dict[str, Any]]]] = {}
        self._offered = 0

    def add(self, reason: str, key: str, record: Callable[[], dict[str, Any]]) -> None:
        """Offer a record, known by a key of its own; it is made if it is kept."""
        if self._number:
            kept = self._kept.setdefault(reason, [])
            # Files of one name in two folders have keys in common: of these the first stays.
            place = (-xxhash.xxh3_64_intdigest(f"{reason}\0{key}".encode()), key, -self._offered)
            self._offered += 1
            if len(kept) < self._number:
                heapq.heappush(kept, (*place, record()))
            elif place > kept[0][:3]:
                heapq.heapreplace(kept, (*place, record()))

    def records(self) -> Iterator[dict[str, Any]]:
        """All that are kept, by reason, in the order that they were drawn in."""
        for reason in sorted(self._kept):
            for _, key, _, record in sorted(self._kept[reason], key=lambda entry: (-entry[0], entry[1], -entry[2])):
                yield {"reason": reason, "key": key, **record}

    def write(self, path: Path) -> None:
        """Write the records, a JSON line each."""
        with JsonLinesWriter(path) as file:
            for record in self.records():
                file.write(record)


def joined(paths: Iterable[Path], number: int) -> Samples:
    """What one drawing from all of these would have kept."""
    samples = Samples(number)
    for path in paths:
        for line in path.read_bytes().splitlines():
            record = json.loads(line)
            samples.add(record.pop("reason"), record.pop("key"), partial(dict, record))
    return samples


def shown(text: str) -> str:
    """As much of a text as a sample holds."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
