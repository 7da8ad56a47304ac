"""The text side of deduplication by ranges: n-grams of a shard sent to the ranges of their hashes, and decisions from the answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.artifacts import written_aside
from data_prep.deduplication.decisions import document_hashes, fixed_by, mark_similar, removed_rows
from data_prep.deduplication.onion import MAX_ORDINAL
from data_prep.deduplication.onion_types import SAME_DOCUMENT, Decisions, Scan
from data_prep.deduplication.range_work import Layout, RangeWork, Run, ShardShape, grouping, joined, read_piece, write_grouped
from data_prep.deduplication.similar_documents import Similar
from data_prep.sharing.scanning import Batch
from data_prep.sharing.shards import finish_shard, finished_shard

_HASHES, _RANGES = ".hashes", ".ranges.npy"  # of a run: of its n-grams; only until the repeated ones are known
_AT, _REPEATED_RANGES, _PARAGRAPHS, _FIRSTS = ".at.npy", ".repeated_ranges.npy", ".paragraphs", ".firsts"  # of its repeated n-grams
_WHOLE = "whole"  # of a shard: hashes of its documents, by range
ANSWERS, MASK, SAME = "answers", "mask", "same"  # of a range, read here


# -- what a shard tells the ranges -------------------------------------------------------------------------------------


def spill_shard(job: tuple[RangeWork, int]) -> ShardShape:
    """Read a file once and leave the hashes of its n-grams to their ranges, 8 bytes each and 2 for its order.

    Raises:
        ValueError: if the file cannot be read.
    """
    work, shard = job
    done = work.of_shard(shard) / "shape.json"
    if record := finished_shard(done, work.state):
        return ShardShape(**record["shape"])
    work.of_shard(shard).mkdir(parents=True, exist_ok=True)
    runs, waiting, tokens, text_bytes = [_Shape.of([])], list[Batch](), 0, 0
    for batch in work.scanner.batches(work.paths[shard]):
        waiting.append(batch)
        tokens += len(batch.scan.hashes)
        text_bytes += batch.text_bytes
        if tokens >= work.run_tokens:
            runs.append(_spill_run(work, Run(shard, len(runs) - 1), waiting))
            waiting, tokens = [], 0
    if waiting:
        runs.append(_spill_run(work, Run(shard, len(runs) - 1), waiting))
    shape = _Shape.joined(runs)
    if work.same_documents:
        _write_whole(work, shard, shape)
    shape.save(work.of_shard(shard))
    found = ShardShape(len(shape.lines), len(shape.paragraph_tokens), int(shape.paragraph_tokens.sum()), len(runs) - 1, text_bytes)
    finish_shard(done, work.state, {"shape": asdict(found)})
    return found


def _spill_run(work: RangeWork, run: Run, batches: list[Batch]) -> _Shape:
    hashes = joined([batch.scan.hashes for batch in batches], np.uint64)
    hashes = hashes[hashes != 0]
    ranges = (hashes >> np.uint64(64 - work.bits)).astype(np.uint16)
    write_grouped(_file(work, run, _HASHES), hashes, ranges, work.num_ranges)
    _save(_file(work, run, _RANGES), ranges)
    return _Shape.of(batches)


def _write_whole(work: RangeWork, shard: int, shape: _Shape) -> None:
    """Leave a hash of each document, of the hashes of its paragraphs, and its first paragraph to the range of that hash; 0 is of empty ones."""
    ranges = (shape.whole >> np.uint64(64 - work.bits)).astype(np.uint16)
    write_grouped(work.of_shard(shard) / _WHOLE, shape.whole, ranges, work.num_ranges)
    write_grouped(work.of_shard(shard) / f"{_WHOLE}{_FIRSTS}", shape.document_paragraph[:-1].astype(np.uint32), ranges, work.num_ranges)


def whole_of(work: RangeWork, shard: int, number: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """(num_documents,) hashes of a shard's documents that belong to a range, in order, and the first paragraph of each in the shard."""
    path = work.of_shard(shard)
    return read_piece(path / _WHOLE, number, np.uint64), read_piece(path / f"{_WHOLE}{_FIRSTS}", number, np.uint32)


def hashes_of(work: RangeWork, run: Run, number: int) -> NDArray[np.uint64]:
    """(num_ngrams,) hashes of the n-grams of a run that belong to a range, in order."""
    return read_piece(_file(work, run, _HASHES), number, np.uint64)


def occurrences_of(work: RangeWork, run: Run, number: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Of the repeated n-grams of a run that belong to a range, in order: the paragraph in which each ends, and the first of its document.

    Both are (num_repeated,) ordinals over all shards.
    """
    return tuple(read_piece(_file(work, run, name), number, np.uint32) for name in (_PARAGRAPHS, _FIRSTS))  # type: ignore[return-value]


def place_shard(job: tuple[RangeWork, int, Layout, Similar]) -> None:
    """Tell the ranges in which paragraphs their repeated n-grams lie, and decide what does not depend on n-grams.

    8 bytes for each repeated n-gram, and 6 for its order.
    """
    work, shard, layout, similar = job
    done = work.of_shard(shard) / "placed.json"
    if finished_shard(done, work.state) is not None:
        return
    shape, first = _Shape.load(work.of_shard(shard)), layout.first_paragraphs[shard]
    work.log.write_places(shard, first, shape.document_paragraph, shape.paragraph_tokens, shape.lines)
    fixed = fixed_by(shape.hits, len(shape.paragraph_tokens))
    if work.same_documents:
        _mark_same(work, shard, shape, fixed)
    mark_similar(similar, layout.first_documents[shard], shape.document_paragraph, fixed)
    _save(work.of_shard(shard) / "fixed.npy", fixed)
    _save(kept_path(work, shard), fixed["verdict"] == 0)
    for number in range(layout.first_runs[shard + 1] - layout.first_runs[shard]):
        _place_run(work, Run(shard, number), layout.first_runs[shard] + number, shape.run(number), first)
    finish_shard(done, work.state, {})


def _place_run(work: RangeWork, run: Run, place: int, shape: _Shape, first: int) -> None:
    """Args: place: number of the run in the files of a range; first: ordinal of the first paragraph of the shard."""
    ranges = np.load(_file(work, run, _RANGES))
    sizes = np.bincount(ranges, minlength=work.num_ranges).tolist()
    answers = [
        np.unpackbits(read_piece(work.of_range(number) / MASK, place, np.uint8), count=size) for number, size in enumerate(sizes) if size
    ]
    repeated = np.empty(len(ranges), bool)
    repeated[grouping(ranges)] = joined(answers, np.uint8).astype(bool)
    at = shape.ngram_tokens(work.scanner.settings.n)[repeated]
    paragraph = np.searchsorted(shape.paragraph_token, at, side="right") - 1
    document = np.searchsorted(shape.document_paragraph, paragraph, side="right") - 1
    ranges = ranges[repeated]
    offset = first + shape.first_paragraph
    write_grouped(_file(work, run, _PARAGRAPHS), (offset + paragraph).astype(np.uint32), ranges, work.num_ranges)
    write_grouped(_file(work, run, _FIRSTS), (offset + shape.document_paragraph[document]).astype(np.uint32), ranges, work.num_ranges)
    _save(_file(work, run, _AT), at)
    _save(_file(work, run, _REPEATED_RANGES), ranges)


def _mark_same(work: RangeWork, shard: int, shape: _Shape, fixed: NDArray[Any]) -> None:
    pieces = [read_piece(work.of_range(number) / SAME, shard, np.uint32) for number in range(work.num_ranges)]
    same = np.empty(len(shape.whole), np.uint32)
    same[grouping((shape.whole >> np.uint64(64 - work.bits)).astype(np.uint16))] = joined(pieces, np.uint32)
    of_paragraph = np.repeat(same, np.diff(shape.document_paragraph))
    again = of_paragraph != MAX_ORDINAL
    fixed["verdict"][again], fixed["source"][again] = SAME_DOCUMENT, of_paragraph[again]


def forget_hashes(work: RangeWork, runs: tuple[Run, ...]) -> None:
    """Give the disk back that the hashes of all n-grams take, when the repeated ones are known."""
    for run in runs:
        _file(work, run, _HASHES).unlink(missing_ok=True)


# -- what a shard decides ----------------------------------------------------------------------------------------------


def kept_path(work: RangeWork, shard: int) -> Path:
    """Which paragraphs of a shard are kept, as far as it is known."""
    return work.of_shard(shard) / "kept.npy"


def decide_shard(job: tuple[RangeWork, int, Layout]) -> bool:
    """Decide over a shard by the present answers of all ranges and write down what goes; whether anything was decided otherwise than before."""
    work, shard, layout = job
    directory = work.of_shard(shard)
    whole, fixed = _Shape.load(directory), np.load(directory / "fixed.npy")
    now = np.zeros(len(fixed), bool)

    def removed() -> Iterator[NDArray[Any]]:
        for number in range(layout.first_runs[shard + 1] - layout.first_runs[shard]):
            shape, run = whole.run(number), Run(shard, number)
            here = slice(shape.first_paragraph, shape.first_paragraph + len(shape.paragraph_tokens))
            decisions = Decisions.empty(len(shape.paragraph_tokens))
            decisions.verdict[:] = fixed["verdict"][here]
            sources = _sources(work, run, layout.first_runs[shard] + number, int(shape.paragraph_tokens.sum()))
            work.scanner.engine.apply(sources, shape.paragraph_token, shape.document_paragraph, work.scanner.settings, decisions)
            now[here] = decisions.verdict == 0
            yield removed_rows(shape.scan(), decisions, fixed[here], document=shape.first_document)

    work.log.write_removed(shard, removed())
    changed = not np.array_equal(np.load(kept_path(work, shard)), now)
    if changed:
        _save(kept_path(work, shard), now)
    return changed


def _sources(work: RangeWork, run: Run, place: int, num_tokens: int) -> NDArray[np.uint32]:
    """(num_tokens,) where the n-gram that ends at each token of a run was seen, `MAX_ORDINAL` where it was not."""
    at, ranges = np.load(_file(work, run, _AT)), np.load(_file(work, run, _REPEATED_RANGES))
    numbers = np.flatnonzero(np.bincount(ranges, minlength=work.num_ranges)).tolist()
    answers = joined([read_piece(work.of_range(number) / ANSWERS, place, np.uint32) for number in numbers], np.uint32)
    sources = np.full(num_tokens, MAX_ORDINAL, np.uint32)
    sources[at[grouping(ranges)]] = answers
    return sources


# -- files ---------------------------------------------------------------------------------------------------------------


class _Shape:
    """Documents without their text: paragraphs, tokens, lines.

    Attributes:
        paragraph_tokens: (num_paragraphs,) tokens of each.
        document_paragraph: (num_documents + 1,) first paragraph of each, and the number of all.
        lines: (num_documents,) of the file.
        hits: (num_paragraphs,) number of the protected text that each repeats, 0 for none.
        whole: (num_documents,) hash of all paragraphs of each, 0 where there is none.
        run_documents: (num_runs,) documents of each run.
        first_document, first_paragraph: of these in their shard.
    """

    _NAMES = ("paragraph_tokens", "document_paragraph", "lines", "hits", "whole", "run_documents")

    def __init__(self, *arrays: NDArray[Any], first_document: int = 0, first_paragraph: int = 0) -> None:
        self.paragraph_tokens, self.document_paragraph, self.lines, self.hits, self.whole, self.run_documents = arrays
        self.first_document, self.first_paragraph = first_document, first_paragraph

    @classmethod
    def of(cls, batches: list[Batch]) -> _Shape:
        """Of a run."""
        scans = [batch.scan for batch in batches]
        counts = joined([np.diff(scan.document_paragraph) for scan in scans], np.int64)
        hits = [batch.hits if batch.hits is not None else np.zeros(batch.scan.num_paragraphs, np.int64) for batch in batches]
        return cls(
            joined([scan.paragraph_tokens for scan in scans], np.int64).astype(np.uint32),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            joined([batch.lines for batch in batches], np.int64),
            joined(hits, np.int64),
            joined([document_hashes(scan) for scan in scans], np.uint64),
            np.array([len(counts)], np.int64) if batches else np.zeros(0, np.int64),
        )

    @classmethod
    def joined(cls, runs: list[_Shape]) -> _Shape:
        """Of a shard."""
        before = np.cumsum([0, *(len(run.paragraph_tokens) for run in runs)]).tolist()
        documents = [run.document_paragraph[:-1] + start for run, start in zip(runs, before)]
        arrays = {name: np.concatenate([getattr(run, name) for run in runs]) for name in cls._NAMES}
        return cls(*(arrays | {"document_paragraph": np.concatenate([*documents, before[-1:]])}).values())

    def save(self, directory: Path) -> None:
        """Write it."""
        with written_aside(directory / "shape.npz") as file:
            np.savez(file, **{name: getattr(self, name) for name in self._NAMES})

    @classmethod
    def load(cls, directory: Path) -> _Shape:
        """Read it."""
        with np.load(directory / "shape.npz") as saved:
            return cls(*(saved[name] for name in cls._NAMES))

    def run(self, number: int) -> _Shape:
        """One run of a shard."""
        first, last = int(self.run_documents[:number].sum()), int(self.run_documents[: number + 1].sum())
        start, end = self.document_paragraph[[first, last]].tolist()
        return _Shape(
            self.paragraph_tokens[start:end],
            self.document_paragraph[first : last + 1] - start,
            self.lines[first:last],
            self.hits[start:end],
            self.whole[first:last],
            self.run_documents[number : number + 1],
            first_document=first,
            first_paragraph=start,
        )

    @property
    def paragraph_token(self) -> NDArray[np.int64]:
        """(num_paragraphs,) first token of each."""
        return np.concatenate([[0], np.cumsum(self.paragraph_tokens[:-1], dtype=np.int64)])[: len(self.paragraph_tokens)].astype(np.int64)

    def ngram_tokens(self, n: int) -> NDArray[np.int64]:
        """(num_ngrams,) the tokens at which an n-gram ends: all of a document but the first n - 1."""
        total = int(self.paragraph_tokens.sum(dtype=np.int64))
        token = np.append(self.paragraph_token, total)[self.document_paragraph]
        ends = np.ones(total, bool)
        for start, end in zip(token[:-1].tolist(), token[1:].tolist()):
            ends[start : min(start + n - 1, end)] = False
        return np.flatnonzero(ends)

    def scan(self) -> Scan:
        """It as a scan without hashes of n-grams, for what asks only for its shape."""
        hashes = np.zeros(int(self.paragraph_tokens.sum(dtype=np.int64)), np.uint64)
        nothing = np.zeros(len(self.paragraph_tokens), np.int64)
        return Scan(hashes, self.paragraph_token, nothing, nothing.astype(np.uint64), self.document_paragraph)


def _file(work: RangeWork, run: Run, name: str) -> Path:
    start = work.of_run(run)
    return start.with_name(start.name + name)


def _save(path: Path, array: NDArray[Any]) -> None:
    with written_aside(path) as file:
        np.save(file, array)
