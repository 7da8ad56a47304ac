"""Ids of documents: those that are used twice are found, in little memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from data_prep.reading.document_ids import DocumentIds, duplicate_ids


def test_ids_that_are_used_again_are_said_in_the_order_of_the_text(tmp_path: Path) -> None:
    for name, identities in (("a", '"x" "y" "x"'), ("b", '"z"'), ("c", '"y" "x" "w"')):
        ids = DocumentIds()
        for line, identity in enumerate(identities.split(), start=1):
            ids.add(identity, line)
        ids.save(tmp_path / f"ids/{name}.npy")
    DocumentIds().save(tmp_path / "ids/empty.npy")
    shards = [(tmp_path / f"ids/{name}.npy", Path(f"{name}.jsonl")) for name in ("a", "empty", "b", "c")]
    found = duplicate_ids(shards)
    assert [sentence.partition(" (")[0] for sentence in found] == [
        "a.jsonl, line 3 has the same id as a.jsonl, line 1",
        "c.jsonl, line 1 has the same id as a.jsonl, line 2",
        "c.jsonl, line 2 has the same id as a.jsonl, line 3",
    ]
    assert all("(3 in all); give each document its own id" in sentence for sentence in found)
    assert duplicate_ids(shards[:2])[0].startswith("a.jsonl, line 3") and duplicate_ids(shards[1:3]) == []
    assert duplicate_ids([]) == [], "a corpus without documents"


@pytest.mark.long
def test_memory_is_9_bytes_a_document_and_16_for_those_of_one_shard(tmp_path: Path) -> None:
    num_documents, num_shards = 20_000, 8
    tracemalloc.start()
    try:
        for shard in range(num_shards):
            ids = DocumentIds()
            for line in range(num_documents):
                ids.add(str(shard * num_documents + line), line)
            ids.save(tmp_path / f"{shard}.npy")
            del ids
        written = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        assert duplicate_ids([(tmp_path / f"{shard}.npy", Path("text")) for shard in range(num_shards)]) == []
        compared = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written < 1.25 * 16 * num_documents + (1 << 16), "an array grows by an eighth at a time"
    assert compared < (9 * num_shards + 2 * 16) * num_documents, "two copies of a shard's while it is read"
