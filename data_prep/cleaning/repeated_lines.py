"""Short lines that many documents of a corpus share: counted over all its files before any is cleaned.

Memory is 12 bytes for each distinct short line of the corpus, twice while two files are joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.cleaning.line_rules import line_hashes
from data_prep.cleaning.text_hygiene import line_ends, white_space
from data_prep.cleaning.text_measures import LINE_END, SPACING, Measurer
from data_prep.plain_files import read_json
from data_prep.reading.scanning import Reading
from data_prep.reading.shards import file_state, finish_shard, finished_shard


def count_lines(path: Path, counts_path: Path, max_words: int, reading: Reading) -> None:
    """Write how many documents of a file have each of its short lines; what an earlier run wrote of the same file is left."""
    done = counts_path.with_suffix(".json")
    state = file_state(path)
    if finished_shard(done, state, counts_path):
        return
    counts: Counter[int] = Counter()
    num_documents = 0
    dirt = Measurer().dirt
    for block in reading.blocks(path, []):
        num_documents += len(block)
        for data in block.texts():
            text = data.decode()
            if dirt(data) & (LINE_END | SPACING):
                text = white_space(line_ends(text))
            lines = [line for line in text.lower().split("\n") if line and line.count(" ") < max_words]
            counts.update(set(line_hashes(lines)) if lines else ())
    found = np.array(sorted(counts.items()), dtype=[("line", np.uint64), ("documents", np.int64)])
    counts_path.parent.mkdir(parents=True, exist_ok=True)
    np.save(counts_path, found)
    finish_shard(done, state, {"num_documents": num_documents})


def repeated_lines(counts_paths: Sequence[Path], limits: Mapping[str, float]) -> NDArray[np.uint64]:
    """The hashes of the lines that so many of the documents counted have, sorted."""
    lines, documents = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    num_documents = 0
    for path in counts_paths:
        found = np.load(path)
        num_documents += read_json(path.with_suffix(".json"))["num_documents"]
        joined, places = np.unique(np.concatenate([lines, found["line"]]), return_inverse=True)
        totals = np.zeros(len(joined), np.int64)
        np.add.at(totals, places, np.concatenate([documents, found["documents"]]))
        lines, documents = joined, totals
    return lines[documents >= max(limits["min_documents"], limits["min_share"] * num_documents)]
