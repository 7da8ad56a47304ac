"""Short lines that many documents of a corpus share: counted over all its files before any is cleaned.

Memory is 16 bytes for each distinct short line of the corpus, three times that while two files are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.artifacts import written_aside
from common.plain_files import read_json
from data_prep.cleaning.code_points import LINE_END, SPACING
from data_prep.cleaning.line_rules import line_hashes
from data_prep.cleaning.text_hygiene import line_ends, white_space
from data_prep.cleaning.text_measures import Measurer
from data_prep.sharing.scanning import Reading
from data_prep.sharing.shards import file_state, finish_shard, finished_shard

_MANY = 1 << 20  # hashes that wait to be counted


def count_lines(path: Path, counts_path: Path, max_words: int, reading: Reading) -> None:
    """Write how many documents of a file have each of its short lines; what an earlier run wrote of the same file is left."""
    done = counts_path.with_suffix(".json")
    state = file_state(path)
    if finished_shard(done, state, counts_path):
        return
    measurer = Measurer()
    lines, documents = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    num_documents = size = 0
    waiting: list[NDArray[np.uint64]] = []
    for block in reading.blocks(path, []):
        num_documents += len(block)
        for data, noise in zip(block.texts(), measurer.noise(block.text, block.offsets).tolist()):
            text = data.decode()
            waiting.append(_short_lines(white_space(line_ends(text)) if noise & (LINE_END | SPACING) else text, max_words))
            size += len(waiting[-1])
        if size > max(_MANY, len(lines)):
            lines, documents = _counted(lines, documents, waiting)
            waiting, size = [], 0
    lines, documents = _counted(lines, documents, waiting)
    table = np.zeros(len(lines), dtype=[("line", np.uint64), ("documents", np.int64)])
    table["line"], table["documents"] = lines, documents
    counts_path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(counts_path) as file:
        np.save(file, table)
    finish_shard(done, state, {"num_documents": num_documents})


def _short_lines(text: str, max_words: int) -> NDArray[np.uint64]:
    """The distinct hashes of a text's short lines."""
    lines = [line.lower() for line in text.split("\n") if line and line.count(" ") < max_words]
    return np.array(list(set(line_hashes(lines))) if lines else [], np.uint64)


def _counted(
    lines: NDArray[np.uint64], documents: NDArray[np.int64], more: Sequence[NDArray[np.uint64]]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Lines, sorted, and how many documents have each, with those of more documents."""
    found, times = np.unique(np.concatenate([*more, np.zeros(0, np.uint64)]), return_counts=True)
    return _joined([lines, found], [documents, times])


def _joined(lines: Sequence[NDArray[np.uint64]], documents: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Distinct lines, sorted, and how many documents have each in all."""
    joined = np.concatenate(lines)
    order = np.argsort(joined)
    joined = joined[order]
    first = np.flatnonzero(np.concatenate([[True], joined[1:] != joined[:-1]])[: len(joined)])
    totals = np.add.reduceat(np.concatenate(documents)[order], first) if len(first) else np.zeros(0, np.int64)
    return joined[first], totals


def repeated_lines(counts_paths: Sequence[Path], limits: Mapping[str, float]) -> NDArray[np.uint64]:
    """(num_lines,) hashes of the lines that so many of the documents counted have, sorted."""
    lines, documents = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    num_documents = 0
    waiting: list[NDArray[Any]] = []
    for number, path in enumerate(counts_paths, 1):
        waiting.append(np.load(path))
        num_documents += read_json(path.with_suffix(".json"))["num_documents"]
        if number == len(counts_paths) or sum(map(len, waiting)) > max(_MANY, len(lines)):
            lines, documents = _joined(
                [lines, *(found["line"] for found in waiting)], [documents, *(found["documents"] for found in waiting)]
            )
            waiting = []
    return lines[documents >= max(limits["min_documents"], limits["min_share"] * num_documents)]
