"""Deduplication of more text than memory holds, by any number of workers, in rounds; the decisions are those of one table.

An n-gram lies in one range of hashes, and a range can tell where an n-gram was first brought if it knows which paragraphs are kept;
a shard can tell which of its paragraphs are kept if it knows where their n-grams were brought.  So both ask each other in turn until nothing
changes.  What is decided on a document depends on earlier documents only, so that there is just one set of decisions with which nothing changes:
that of one pass in the order of the text.  (The first document is right after one round, each next one a round after those before it
are; in practice nearly all are at once.)  For the same reason it does not matter where the rounds begin, so that a run that was killed goes on.

Nothing but numbers of shards goes through the process that calls this.  All that equals lies in one range, so a range answers alone, in the memory of
its own n-grams; the side of the shards is `runs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.artifacts import digest_bytes
from common.progress import Progress
from data_prep.deduplication.onion import MAX_ORDINAL
from data_prep.deduplication.range_work import Layout, RangeWork, joined, piece_sizes, read_pieces, write_pieces
from data_prep.deduplication.runs import (
    ANSWERS,
    MASK,
    SAME,
    decide_shard,
    forget_hashes,
    hashes_of,
    kept_path,
    occurrences_of,
    place_shard,
    spill_shard,
    whole_of,
)
from data_prep.deduplication.similar_documents import Similar
from data_prep.sharing.shards import file_state, finish_shard, finished_shard, ordered_map

_GROUPS, _LOCAL = "groups", "local"  # per occurrence: number of its n-gram; where its document had it before

RangeJob = tuple[RangeWork, Sequence[int], Layout]


def find_repeats(job: RangeJob) -> None:
    """Tell the shards which of their n-grams occur twice or more, a bit each; 8 bytes of memory an n-gram, and as many to sort them."""
    work, numbers, layout = job
    for number in numbers:
        done = work.of_range(number) / "repeats.json"
        if finished_shard(done, work.state) is not None:
            continue
        work.of_range(number).mkdir(parents=True, exist_ok=True)
        pieces = [hashes_of(work, run, number) for run in layout.runs]
        repeated = _repeated(joined(pieces, np.uint64))
        masks, groups = [], []
        while pieces:  # of the largest array there is one
            piece = pieces.pop(0)
            place = np.searchsorted(repeated, piece)
            is_repeated = repeated[np.minimum(place, len(repeated) - 1)] == piece if len(repeated) else np.zeros(len(piece), bool)
            masks.append(np.packbits(is_repeated))
            groups.append(place[is_repeated].astype(np.uint32))
        write_pieces(work.of_range(number) / MASK, masks)
        write_pieces(work.of_range(number) / _GROUPS, groups)
        if work.same_documents:
            write_pieces(work.of_range(number) / SAME, _same_documents(work, number, layout))
        finish_shard(done, work.state, {})


def _repeated(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    hashes.sort()
    again = hashes[1:][hashes[1:] == hashes[:-1]]
    return again[np.append(True, again[1:] != again[:-1])] if len(again) else again


def _same_documents(work: RangeWork, number: int, layout: Layout) -> list[NDArray[np.uint32]]:
    """For each shard and document of the range the first paragraph of the first document that is the same, `MAX_ORDINAL` where it is that."""
    found = [whole_of(work, shard, number) for shard in range(len(work.paths))]
    hashes = joined([hashes for hashes, _ in found], np.uint64)
    ordinals = joined([layout.first_paragraphs[shard] + firsts.astype(np.int64) for shard, (_, firsts) in enumerate(found)], np.int64)
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    is_again = (first[group] != np.arange(len(hashes))) & (hashes != 0)
    answers = np.where(is_again, ordinals[first][group], MAX_ORDINAL).astype(np.uint32)
    return np.split(answers, np.cumsum([len(hashes) for hashes, _ in found])[:-1])


def gather_occurrences(job: RangeJob) -> None:
    """Bring together where the repeated n-grams of a range lie, once for all rounds."""
    work, numbers, layout = job
    for number in numbers:
        directory = work.of_range(number)
        done = directory / "gathered.json"
        if finished_shard(done, work.state) is not None:
            continue
        found = [occurrences_of(work, run, number) for run in layout.runs]
        ends = np.cumsum([len(paragraphs) for paragraphs, _ in found])[:-1]
        paragraphs, firsts = (joined([pair[side] for pair in found], np.uint32) for side in (0, 1))
        del found
        within = work.scanner.settings.within_document
        local = _local(_all(directory / _GROUPS), paragraphs, firsts) if within else np.full(len(paragraphs), MAX_ORDINAL, np.uint32)
        for name, array in (("paragraphs", paragraphs), ("firsts", firsts), (_LOCAL, local)):
            write_pieces(directory / name, np.split(array, ends))
        (directory / ANSWERS).unlink(missing_ok=True)
        finish_shard(done, work.state, {})


def _local(groups: NDArray[np.uint32], paragraphs: NDArray[np.uint32], firsts: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """For each occurrence the paragraph in which its document had the n-gram first, `MAX_ORDINAL` where it is the first."""
    order = np.argsort(groups, kind="stable")  # by n-gram, then in the order of the text
    new = np.ones(len(order), bool)
    new[1:] = (groups[order][1:] != groups[order][:-1]) | (firsts[order][1:] != firsts[order][:-1])
    first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    local = np.empty(len(order), np.uint32)
    local[order] = np.where(new, MAX_ORDINAL, paragraphs[order][first])
    return local


def answer(job: RangeJob) -> set[int]:
    """Say of each repeated n-gram where it was seen, by what is kept at present; returns the runs for which that is news."""
    work, numbers, layout = job
    news: set[int] = set()
    for number in numbers:
        directory = work.of_range(number)
        groups, paragraphs, firsts, local = (_all(directory / name) for name in (_GROUPS, "paragraphs", "firsts", _LOCAL))
        kept = np.flatnonzero(_kept(work, layout, paragraphs))[::-1]
        brought = np.full(int(groups.max()) + 1 if len(groups) else 0, MAX_ORDINAL, np.uint32)
        brought[groups[kept]] = paragraphs[kept]  # from the end of the text, so that the first stays
        seen = brought[groups]
        now = np.where(seen < firsts, seen, local)  # a document's own n-grams are stored behind it
        news |= _changed(directory, now)
    return news


def _kept(work: RangeWork, layout: Layout, paragraphs: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Whether each of the paragraphs, in the order of the text, is kept at present."""
    bounds = np.searchsorted(paragraphs, np.array(layout.first_paragraphs, np.int64)).tolist()
    kept = np.empty(len(paragraphs), bool)
    for shard, (start, end) in enumerate(zip(bounds, bounds[1:])):
        if end > start:
            kept[start:end] = np.load(kept_path(work, shard), mmap_mode="r")[paragraphs[start:end] - layout.first_paragraphs[shard]]
    return kept


def _changed(directory: Path, now: NDArray[np.uint32]) -> set[int]:
    """Write the answers if they are not those of before; the runs that have others."""
    path = directory / ANSWERS
    sizes = piece_sizes(directory / _LOCAL)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    before = _all(path) if path.exists() else None
    if before is not None and np.array_equal(before, now):
        return set()
    write_pieces(path, np.split(now, starts[1:-1]))
    if before is None:
        return set(np.flatnonzero(sizes).tolist())
    other = np.flatnonzero(before != now)
    return set(np.unique(np.searchsorted(starts, other, side="right") - 1).tolist())


def _all(path: Path) -> NDArray[Any]:
    return read_pieces(path, 0, len(piece_sizes(path)), np.uint32)


_BLOCKS = 64  # tasks in which all ranges are done

Job = TypeVar("Job")
Result = TypeVar("Result")


def decide_by_ranges(work: RangeWork, similar: Similar, *, workers: int) -> Layout:
    """Decide over all shards; their decisions lie in the directory of each.

    Raises:
        ValueError: if a shard cannot be read, or there are more than 4.29 billion paragraphs.
    """
    shards = range(len(work.paths))
    work = replace(work, state=digest_bytes(json.dumps([file_state(path) for path in work.paths]).encode()))
    shapes = _run("reading", spill_shard, [(work, shard) for shard in shards], work, workers)
    layout = Layout.of(shapes)
    if layout.first_paragraphs[-1] > MAX_ORDINAL:
        raise ValueError("there are more than 4.29 billion paragraphs; deduplicate the corpora in parts, or use --paragraphs document")
    done = work.directory / "decided.json"
    if finished_shard(done, work.state) is not None:
        return layout
    blocks = [(work, numbers, layout) for numbers in _blocks(work.num_ranges)]
    _run("finding repeated n-grams", find_repeats, blocks, work, workers)
    forget_hashes(work, layout.runs)
    placing = [(work, shard, layout) for shard in shards]
    with_similar = [(*job, similar.part(*layout.first_documents[job[1] : job[1] + 2])) for job in placing]
    _run("placing repeated n-grams", place_shard, with_similar, work, workers)
    _run("gathering repeated n-grams", gather_occurrences, blocks, work, workers)
    news, number = set(shards), 0
    while news:
        number += 1
        answered = set[int]().union(*_run(f"round {number}, asking", answer, blocks, work, workers))
        asked = sorted({layout.runs[run].shard for run in answered} | (news if number == 1 else set()))
        changed = _run(f"round {number}, deciding", decide_shard, [placing[shard] for shard in asked], work, workers)
        news = {shard for shard, is_news in zip(asked, changed) if is_news}
    finish_shard(done, work.state, {"num_rounds": number})
    return layout


def _blocks(num_ranges: int) -> list[Sequence[int]]:
    count = min(num_ranges, _BLOCKS)
    return [range(block * num_ranges // count, (block + 1) * num_ranges // count) for block in range(count)]


def _run(label: str, function: Callable[[Job], Result], jobs: Sequence[Job], work: RangeWork, workers: int) -> list[Result]:
    found: list[Result] = []
    with Progress(label, total=len(jobs), unit="tasks") as progress:
        results: Iterable[Result] = ordered_map(function, jobs, workers=min(workers, max(len(jobs), 1)), name=lambda job: _name(job, work))
        for result in results:
            found.append(result)
            progress.advance()
    return found


def _name(job: Any, work: RangeWork) -> str:
    return str(work.paths[job[1]]) if isinstance(job[1], int) else f"ranges {job[1][0]} to {job[1][-1]}"
