"""Shards as scanned batches for deduplication, in order, by one process or several."""

from __future__ import annotations

import argparse
import pickle
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.memory import free_memory
from common.progress import Counter, SharedProgress
from data_prep.deduplication.onion import Engine, engine
from data_prep.deduplication.onion_types import OnionSettings, Scan
from data_prep.deduplication.similar_documents import Similar, SimilarSettings, find_similar, sketch_shard
from data_prep.reading.blocks import Block, read_blocks
from data_prep.reading.comparison import Comparison
from data_prep.reading.documents import BadInput, Document, read_documents
from data_prep.sharing import on_ray
from data_prep.sharing.shards import ordered_map


@dataclass(frozen=True)
class Reading:
    """How files are read; `skip_bad` skips what cannot be read."""

    text_key: str = "text"
    separator: str | None = None
    max_document_bytes: int = 64 << 20
    skip_bad: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Reading:
        """As the options of a command say."""
        skip_bad = getattr(arguments, "skip_bad", False)
        return cls(arguments.text_key, arguments.document_separator, arguments.max_document_mib << 20, skip_bad)

    def blocks(
        self, path: Path, bad: list[BadInput] | None = None, *, text_key: str | None = "", progress: Counter | None = None
    ) -> Iterator[Block]:
        """Yield the documents of a file by the megabyte; arguments as `documents`."""
        return read_blocks(path, text_key=self.text_key if text_key == "" else text_key, **self._options(bad, progress))

    def documents(
        self, path: Path, bad: list[BadInput] | None = None, *, text_key: str | None = "", progress: Counter | None = None
    ) -> Iterator[Document]:
        """Yield the documents of a file.

        Args:
            bad: receives what was skipped.
            text_key: in place of the usual one.
            progress: told of the bytes read from disk.
        """
        return read_documents(path, text_key=self.text_key if text_key == "" else text_key, **self._options(bad, progress))

    def _options(self, bad: list[BadInput] | None, progress: Counter | None) -> dict[str, Any]:
        return {
            "separator": self.separator,
            "progress": progress,
            "max_document_bytes": self.max_document_bytes,
            "on_bad": (bad if bad is not None else []).append if self.skip_bad else None,
        }


@dataclass(frozen=True)
class ReadingAgain(Reading):
    """Files that one process reads more than once: their blocks stay in memory as far as there is room, so that the work of reading is done once.

    Attributes:
        room_bytes: for all that is held.
    """

    room_bytes: int = 0
    _held: dict[Path, tuple[list[Block], list[BadInput]]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of_one_worker(cls, reading: Reading, workers: int) -> Reading:
        """With `room_of_one_worker`; as it was where others work too, who have no part in the memory of this process."""
        if workers > 1 or on_ray.leader() is not None:
            return reading
        return cls(**vars(reading), room_bytes=room_of_one_worker())

    def blocks(
        self, path: Path, bad: list[BadInput] | None = None, *, text_key: str | None = "", progress: Counter | None = None
    ) -> Iterator[Block]:
        """See `Reading.blocks`."""
        if text_key != "":
            yield from super().blocks(path, bad, text_key=text_key, progress=progress)
            return
        bad = [] if bad is None else bad
        if path in self._held:
            bad += self._held[path][1]
            yield from self._held[path][0]
            return
        known, fits = len(bad), True
        room = self.room_bytes - sum(block.num_bytes for blocks, _ in self._held.values() for block in blocks)
        here: list[Block] = []
        for block in super().blocks(path, bad, progress=progress):
            room -= block.num_bytes
            fits = fits and room >= 0
            if fits:
                here.append(block)
            else:
                here = []
            yield block
        if fits:
            self._held[path] = here, bad[known:]


def room_of_one_worker() -> int:
    """Bytes of memory for text that one worker alone reads more than once: an eighth of what is free."""
    return free_memory() // 8


@dataclass(frozen=True)
class Batch:
    """Some documents of a shard, one after the other.

    Attributes:
        lines: (num_documents,) int64, the line of each in its file.
        text_bytes: of their UTF-8.
        hits: for each paragraph the number, from 1, of the protected text that it repeats, 0 where it repeats none; None without
            protected texts.
    """

    scan: Scan
    lines: NDArray[np.int64]
    text_bytes: int
    hits: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Protected:
    """N-grams and short paragraphs of texts that must not be in the training text (validation and evaluation sets).

    Attributes:
        n: tokens in an n-gram.
        ngrams, ngram_documents: sorted hashes and the number of the (first) protected document of each, from 1.
        shorts, short_documents: the same for whole paragraphs of fewer than n tokens.
    """

    n: int
    ngrams: NDArray[np.uint64]
    ngram_documents: NDArray[np.int64]
    shorts: NDArray[np.uint64]
    short_documents: NDArray[np.int64]

    @classmethod
    def gather(cls, scans: Iterable[Scan], n: int, shortest: int) -> Protected:
        """From scans with n-grams of n tokens, their documents numbered from 1; paragraphs of fewer than `shortest` tokens are not protected."""
        ngrams, ngram_documents, shorts, short_documents = [], [], [], []
        before = 0
        for scan in scans:
            paragraph_document = before + 1 + np.repeat(np.arange(scan.num_documents), np.diff(scan.document_paragraph))
            token_document = np.repeat(paragraph_document, scan.paragraph_tokens)
            whole = scan.hashes != 0
            short = (scan.paragraph_tokens < n) & (scan.paragraph_tokens >= shortest)
            ngrams.append(scan.hashes[whole])
            ngram_documents.append(token_document[whole])
            shorts.append(scan.paragraph_hash[short])
            short_documents.append(paragraph_document[short])
            before += scan.num_documents
        return cls(n, *_first_of_each(ngrams, ngram_documents), *_first_of_each(shorts, short_documents))

    def hits(self, scan: Scan) -> NDArray[np.int64]:
        """(num_paragraphs,) the protected document that each paragraph of a scan with the same n shares an n-gram with, 0 for none."""
        found = np.zeros(scan.num_paragraphs, dtype=np.int64)
        _look_up(scan.paragraph_hash, self.shorts, self.short_documents, found)
        tokens = np.zeros(len(scan.hashes), dtype=np.int64)
        _look_up(scan.hashes, self.ngrams, self.ngram_documents, tokens)
        for end in np.flatnonzero(tokens).tolist():
            # An n-gram may lie across paragraphs: it is none of theirs in particular, so all go.
            first, last = np.searchsorted(scan.paragraph_token, (end - self.n + 1, end), side="right").tolist()
            span = found[first - 1 : last]
            span[span == 0] = tokens[end]
        return found


def _first_of_each(hashes: Sequence[NDArray[np.uint64]], documents: Sequence[NDArray[np.int64]]) -> tuple[NDArray, NDArray]:
    joined = np.concatenate([*hashes, np.zeros(0, np.uint64)])
    unique, first = np.unique(joined, return_index=True)
    return unique, np.concatenate([*documents, np.zeros(0, np.int64)])[first]


def _look_up(hashes: NDArray[np.uint64], known: NDArray[np.uint64], documents: NDArray[np.int64], found: NDArray[np.int64]) -> None:
    if len(known):
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        same = known[at] == hashes
        found[same] = documents[at[same]]


@dataclass
class Scanner:
    """Reads shards and scans their documents.

    Attributes:
        protected: look for these texts.
    """

    reading: Reading
    settings: OnionSettings
    comparison: Comparison
    protected: Protected | None = None
    _engine: Engine | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_engine": None}

    @property
    def engine(self) -> Engine:
        """The loops of this process."""
        if self._engine is None:
            self._engine = engine()
        return self._engine

    def batches(self, path: Path, *, text_key: str | None = "") -> Iterator[Batch]:
        """Yield a shard's documents in order."""
        for block in self.reading.blocks(path, text_key=text_key):
            text, offsets = self.comparison.prepared(block.text, block.offsets)
            scan = self.engine.scan_joined(text, offsets, self.settings)
            hits = None
            if self.protected is not None:
                same = self.protected.n == self.settings.n
                hits = self.protected.hits(
                    scan if same else self.engine.scan_joined(text, offsets, _with_n(self.settings, self.protected.n))
                )
            yield Batch(scan, block.lines, len(text), hits)

    def batches_of_all(self, paths: Sequence[Path], scratch: Path, *, workers: int) -> Iterator[tuple[int, Batch]]:
        """Yield (number of the shard, batch) of all shards in order.

        With several workers a scanned shard waits in `scratch`, 8 bytes a token; at most `workers` + 2 of them at a time.
        """
        if workers == 1 and on_ray.leader() is None:
            for number, path in enumerate(paths):
                yield from ((number, batch) for batch in self.batches(path))
            return
        jobs = [(self, path, scratch / f"scan_{number}") for number, path in enumerate(paths)]
        for number, done in enumerate(ordered_map(_scan_to_file, jobs, workers=workers, name=lambda job: str(job[1]))):
            with open(done, "rb") as file:
                while (batch := pickle.load(file)) is not None:
                    yield number, batch
            done.unlink()


def _with_n(settings: OnionSettings, n: int) -> OnionSettings:
    return OnionSettings(n=n, paragraphs=settings.paragraphs)


def _scan_to_file(job: tuple[Scanner, Path, Path]) -> Path:
    scanner, path, target = job
    with open(target, "wb") as file:
        for batch in scanner.batches(path):
            pickle.dump(batch, file, protocol=5)
        pickle.dump(None, file)
    return target


def similar_documents(reading: Reading, settings: SimilarSettings, paths: Sequence[Path], scratch: Path, *, workers: int) -> Similar:
    """The documents of all shards that go because they are much like another one.

    Raises:
        ValueError: if a shard cannot be read.
    """
    directory = scratch / "similar"
    shutil.rmtree(directory, ignore_errors=True)  # of a run that was killed
    directory.mkdir()
    jobs = [(reading, settings, path, directory, shard) for shard, path in enumerate(paths)]
    size = sum(path.stat().st_size for path in paths)
    with SharedProgress("near-duplicate documents, reading", total=size, unit="B", is_bytes=True) as progress:
        sketches = ordered_map(
            _sketch, jobs, workers=workers, name=lambda job: str(job[2]), initializer=_show_progress, initargs=(progress,)
        )
        for _ in sketches:
            pass
    found = find_similar(directory, len(paths), settings)
    shutil.rmtree(directory)
    return found


_PROGRESS: list[Counter] = []  # of this process


def _show_progress(progress: Counter) -> None:
    _PROGRESS[:] = [progress]


def _sketch(job: tuple[Reading, SimilarSettings, Path, Path, int]) -> None:
    reading, settings, path, directory, shard = job
    sketch_shard((block.texts() for block in reading.blocks(path, progress=_PROGRESS[0])), settings, directory, shard)
