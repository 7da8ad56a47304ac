"""Decisions over more text than the memory holds, by any number of workers: the same as those of one table, found in rounds.

An n-gram lies in one range of hashes, and a range can tell where an n-gram was first brought if it knows which paragraphs are kept;
a shard can tell which of its paragraphs are kept if it knows where their n-grams were brought.  So both ask each other in turn until nothing
changes.  What is decided on a document depends on earlier documents only, so that there is just one set of decisions with which nothing changes:
that of one pass in the order of the text.  (The first document is right after one round, each next one a round after those before it
are; in practice nearly all are at once.)  For the same reason it does not matter where the rounds begin, so that a run that was killed goes on.

Nothing but numbers of shards goes through the process that calls this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from common.artifacts import digest_bytes
from common.progress import Progress
from data_prep.deduplication.onion import MAX_ORDINAL
from data_prep.deduplication.range_work import Layout, RangeWork
from data_prep.deduplication.ranges import answer, find_repeats, gather_occurrences
from data_prep.deduplication.runs import decide_shard, forget_hashes, place_shard, spill_shard
from data_prep.deduplication.similar_documents import Similar
from data_prep.sharing.shards import file_state, finish_shard, finished_shard, ordered_map

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
        told = set[int]().union(*_run(f"round {number}, asking", answer, blocks, work, workers))
        asked = sorted({layout.runs[run].shard for run in told} | (news if number == 1 else set()))
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
