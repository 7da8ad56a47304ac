"""The one sequential part of deduplication: decisions in the order of the text, written down as they are made."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep.deduplication.onion import MAX_ORDINAL, Table
from data_prep.deduplication.onion_types import CONTAMINATED, KEPT, SAME_DOCUMENT, SIMILAR_DOCUMENT, Decisions, Scan
from data_prep.deduplication.similar_documents import Similar, SimilarSettings
from data_prep.reading.scanning import Batch, Scanner

REMOVED = np.dtype(
    [("document", "<i8"), ("paragraph", "<i4"), ("verdict", "u1"), ("tokens", "<u4"), ("covered", "<u4"), ("repeated", "<u4"),
     ("possible", "<u4"), ("source", "<i8"), ("source_ngrams", "<u4"), ("share", "<f8")]
)  # fmt: skip
PLACE = np.dtype([("first_paragraph", "<u8"), ("line", "<i8")])
_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class DocumentMethods:
    """What is removed as a whole document, besides paragraphs.

    Attributes:
        same: documents with the tokens and paragraphs of an earlier one.
        similar: documents that are much like another one.
    """

    same: bool = False
    similar: SimilarSettings | None = None


@dataclass
class DecisionLog:
    """Files with what was removed from each shard, and where each document's paragraphs begin.

    Attributes:
        first_documents: number of the first document of each shard.
    """

    directory: Path
    num_shards: int
    first_documents: list[int] = field(default_factory=list)

    @property
    def places_path(self) -> Path:
        """Of the documents of all shards, as `PLACE`."""
        return self.directory / "places"

    def removed(self, shard: int) -> NDArray[Any]:
        """What was removed from a shard, as `REMOVED`, in order."""
        path = self._path(shard)
        return np.fromfile(path, REMOVED) if path.exists() else np.zeros(0, REMOVED)

    def append(
        self,
        shard: int,
        batch: Batch,
        decisions: Decisions,
        source: NDArray[np.int64],
        share: NDArray[np.float64],
        *,
        document: int,
        ordinal: int,
    ) -> None:
        """Write down the decisions over the next batch.

        Args:
            source: (num_paragraphs,) what each paragraph repeats: ordinal of a paragraph, -1 for none; number of the protected
                document for what is contaminated; number of the document over all shards for what is similar.
            share: (num_paragraphs,) how much like the other document it is, where it is similar.
            document: number of its first document in the shard.
            ordinal: of its first paragraph.
        """
        scan = batch.scan
        places = np.zeros(scan.num_documents, PLACE)
        places["first_paragraph"] = ordinal + scan.document_paragraph[:-1]
        places["line"] = batch.lines
        with open(self.places_path, "ab") as file:
            places.tofile(file)
        gone = np.flatnonzero(decisions.verdict != KEPT)
        if not len(gone):
            return
        rows = np.zeros(len(gone), REMOVED)
        owner = np.repeat(np.arange(scan.num_documents), np.diff(scan.document_paragraph))[gone]
        rows["document"] = document + owner
        rows["paragraph"] = gone - scan.document_paragraph[owner]
        rows["tokens"] = scan.paragraph_tokens[gone]
        rows["source"] = source[gone]
        rows["share"] = share[gone]
        for name in ("verdict", "covered", "repeated", "possible", "source_ngrams"):
            rows[name] = getattr(decisions, name)[gone]
        with open(self._path(shard), "ab") as file:
            rows.tofile(file)

    def _path(self, shard: int) -> Path:
        return self.directory / f"removed_{shard}"


def decide_all(
    scanner: Scanner, paths: Sequence[Path], log: DecisionLog, *, same: bool = False, similar: Similar | None = None, workers: int
) -> int:
    """Decide over all shards in order; returns how many n-grams were held in memory.

    Args:
        same: documents with the tokens and paragraphs of an earlier one go.
        similar: documents that go because they are like another one.

    Raises:
        ValueError: if a shard cannot be read, or there are more than 4.29 billion paragraphs.
    """
    table, whole = scanner.engine.table(), scanner.engine.table()
    total_bytes = text_size(paths)
    ordinal = documents = seen_bytes = seen_tokens = 0
    if scanner.repeated is not None:
        table.reserve(len(scanner.repeated.load()[0]))
    for shard, batch in scanner.batches_of_all(paths, log.directory, workers=workers):
        while len(log.first_documents) <= shard:
            log.first_documents.append(documents)
        scan = batch.scan
        if ordinal + scan.num_paragraphs > MAX_ORDINAL:
            raise ValueError("there are more than 4.29 billion paragraphs; deduplicate the corpora in parts, or use --paragraphs document")
        decisions = Decisions.empty(scan.num_paragraphs)
        fixed = np.full(scan.num_paragraphs, -1, dtype=np.int64)
        share = np.zeros(scan.num_paragraphs)
        if batch.hits is not None:
            decisions.verdict[batch.hits > 0] = CONTAMINATED
            fixed[batch.hits > 0] = batch.hits[batch.hits > 0]
        if same:
            _mark_same(whole, scan, ordinal, decisions, fixed)
        if similar is not None:
            _mark_similar(*similar.among(documents, scan.num_documents), scan, decisions, fixed, share)
        table.decide(scan, scanner.settings, ordinal, decisions)
        source = np.where(decisions.source_ngrams > 0, decisions.source.astype(np.int64), -1)
        log.append(
            shard,
            batch,
            decisions,
            np.where(fixed >= 0, fixed, source),
            share,
            document=documents - log.first_documents[shard],
            ordinal=ordinal,
        )
        ordinal += scan.num_paragraphs
        documents += scan.num_documents
        if scanner.repeated is None and seen_bytes < _SAMPLE_BYTES <= seen_bytes + batch.text_bytes:
            # One sample tells how many tokens there will be about; to grow again and again takes longer than all the rest.
            table.reserve(int((seen_tokens + len(scan.hashes)) / (seen_bytes + batch.text_bytes) * total_bytes))
        seen_bytes += batch.text_bytes
        seen_tokens += len(scan.hashes)
    while len(log.first_documents) < log.num_shards:
        log.first_documents.append(documents)
    return len(table)


def text_size(paths: Iterable[Path]) -> int:
    """Bytes of files without their compression, as far as that can be told without reading them (gzip counts modulo 4 GiB)."""
    total = 0
    for path in paths:
        size = path.stat().st_size
        if path.suffix == ".gz" and size > 18:
            with open(path, "rb") as file:
                file.seek(-4, os.SEEK_END)
                size = max(size, struct.unpack("<I", file.read(4))[0])
        total += size
    return total


def _mark_same(whole: Table, scan: Scan, ordinal: int, decisions: Decisions, fixed: NDArray[np.int64]) -> None:
    """Mark documents whose paragraphs are all those of an earlier document, in their order."""
    starts = scan.document_paragraph
    hashes = [
        xxhash.xxh3_64_intdigest(scan.paragraph_hash[a:b].tobytes()) if b > a else 0 for a, b in zip(starts.tolist(), starts.tolist()[1:])
    ]
    first = whole.first(np.array(hashes, dtype=np.uint64), (ordinal + starts[:-1]).astype(np.uint32), MAX_ORDINAL)
    for document in np.flatnonzero(first != MAX_ORDINAL).tolist():
        paragraphs = slice(starts[document], starts[document + 1])
        decisions.verdict[paragraphs] = SAME_DOCUMENT
        fixed[paragraphs] = first[document]


def _mark_similar(
    gone: NDArray[np.int64],
    like: NDArray[np.int64],
    shares: NDArray[np.float64],
    scan: Scan,
    decisions: Decisions,
    fixed: NDArray[np.int64],
    share: NDArray[np.float64],
) -> None:
    """Mark documents that are like another one, but those of which something is marked already."""
    for document, other, how_much in zip(gone.tolist(), like.tolist(), shares.tolist()):
        paragraphs = slice(*scan.document_paragraph[document : document + 2].tolist())
        if not decisions.verdict[paragraphs].any():
            decisions.verdict[paragraphs] = SIMILAR_DOCUMENT
            fixed[paragraphs], share[paragraphs] = other, how_much
