"""The decisions of deduplication and their file format; and decisions in one pass, in the order of the text."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.artifacts import written_aside
from data_prep.deduplication.onion import MAX_ORDINAL, Table
from data_prep.deduplication.onion_types import CONTAMINATED, KEPT, SAME_DOCUMENT, SIMILAR_DOCUMENT, Decisions, Scan
from data_prep.deduplication.similar_documents import Similar, SimilarSettings
from data_prep.reading.compressed import compression_of, density
from data_prep.reading.parquet import unpacked_size
from data_prep.sharing.scanning import Batch, Scanner

REMOVED = np.dtype(
    [("document", "<i8"), ("paragraph", "<i4"), ("verdict", "u1"), ("tokens", "<u4"), ("covered", "<u4"), ("repeated", "<u4"),
     ("possible", "<u4"), ("source", "<i8"), ("source_ngrams", "<u4"), ("share", "<f8")]
)  # fmt: skip
# What does not depend on n-grams: index into `REASONS`; what a paragraph repeats: ordinal of a paragraph, number of the protected document for
# what is contaminated, number of the document over all shards for what is similar; and how much it is like that.
FIXED = np.dtype([("verdict", "u1"), ("source", "<i8"), ("share", "<f8")])
PLACE = np.dtype([("first_paragraph", "<u8"), ("line", "<i8"), ("paragraphs", "<u4"), ("tokens", "<u4")])
_SAMPLE_BYTES = 1 << 20
_SURE_GZIP_BYTES = 256 << 20  # a larger file may hold more than 4 GiB, and what it says of its size be little


@dataclass(frozen=True)
class DocumentMethods:
    """What is removed as a whole document, besides paragraphs.

    Attributes:
        same: documents with the tokens and paragraphs of an earlier one.
        similar: documents that are much like another one.
    """

    same: bool = False
    similar: SimilarSettings | None = None


@dataclass(frozen=True)
class DecisionLog:
    """Files with what was removed from each shard, and where each document's paragraphs begin."""

    directory: Path

    def removed(self, shard: int) -> NDArray[Any]:
        """(num_removed,) `REMOVED`, the paragraphs that were removed from a shard, in order."""
        path = self._path("removed", shard)
        return np.fromfile(path, REMOVED) if path.exists() else np.zeros(0, REMOVED)

    def places(self, shard: int) -> NDArray[Any]:
        """(num_documents,) `PLACE`, where the documents of a shard begin and how long they are; mapped, since few are asked for."""
        path = self._path("places", shard)
        # As a plain array: numpy makes an object of its class for each element of a mapped one that is asked for.
        return np.asarray(np.memmap(path, PLACE, mode="r")) if path.exists() and path.stat().st_size else np.zeros(0, PLACE)

    def clear(self) -> None:
        """Forget what a run that was killed has written."""
        for path in self.directory.iterdir():
            path.unlink()

    def append(self, shard: int, batch: Batch, decisions: Decisions, fixed: NDArray[Any], *, document: int, ordinal: int) -> None:
        """Write down the decisions over the next batch.

        Args:
            fixed: (num_paragraphs,) `FIXED`.
            document: number of its first document in the shard.
            ordinal: of its first paragraph.
        """
        with open(self._path("places", shard), "ab") as file:
            _places(ordinal, batch.scan.document_paragraph, batch.scan.paragraph_tokens, batch.lines).tofile(file)
        rows = removed_rows(batch.scan, decisions, fixed, document=document)
        if len(rows):
            with open(self._path("removed", shard), "ab") as file:
                rows.tofile(file)

    def write_places(
        self, shard: int, ordinal: int, document_paragraph: NDArray[np.int64], paragraph_tokens: NDArray[np.int64], lines: NDArray[np.int64]
    ) -> None:
        """Write down where all documents of a shard begin and how long they are.

        Args:
            ordinal: of its first paragraph.
            document_paragraph, paragraph_tokens: as of a `Scan`, of the whole shard.
            lines: (num_documents,) of the file.
        """
        _write(self._path("places", shard), [_places(ordinal, document_paragraph, paragraph_tokens, lines)])

    def write_removed(self, shard: int, parts: Iterable[NDArray[Any]]) -> None:
        """Write down what is removed from a shard in all, arrays (num_removed,) of `REMOVED`, in place of what was written before."""
        _write(self._path("removed", shard), parts)

    def _path(self, what: str, shard: int) -> Path:
        return self.directory / f"{what}_{shard}"


def _places(
    ordinal: int, document_paragraph: NDArray[np.int64], paragraph_tokens: NDArray[np.int64], lines: NDArray[np.int64]
) -> NDArray[Any]:
    places = np.zeros(len(lines), PLACE)
    places["first_paragraph"], places["line"] = ordinal + document_paragraph[:-1], lines
    places["paragraphs"] = np.diff(document_paragraph)
    places["tokens"] = np.diff(np.append(0, np.cumsum(paragraph_tokens))[document_paragraph])
    return places


def _write(path: Path, parts: Iterable[NDArray[Any]]) -> None:
    with written_aside(path) as file:
        for part in parts:
            part.tofile(file)


def removed_rows(scan: Scan, decisions: Decisions, fixed: NDArray[Any], *, document: int) -> NDArray[Any]:
    """What goes of some documents, (num_removed,) `REMOVED`.

    Args:
        fixed: (num_paragraphs,) `FIXED`.
        document: number of the first document in the shard.
    """
    gone = np.flatnonzero(decisions.verdict != KEPT)
    rows = np.zeros(len(gone), REMOVED)
    if not len(gone):
        return rows
    owner = np.repeat(np.arange(scan.num_documents), np.diff(scan.document_paragraph))[gone]
    by_ngrams = np.where(decisions.source_ngrams > 0, decisions.source.astype(np.int64), -1)
    rows["document"] = document + owner
    rows["paragraph"] = gone - scan.document_paragraph[owner]
    rows["tokens"] = scan.paragraph_tokens[gone]
    rows["source"] = np.where(fixed["verdict"] != KEPT, fixed["source"], by_ngrams)[gone]
    rows["share"] = fixed["share"][gone]
    for name in ("verdict", "covered", "repeated", "possible", "source_ngrams"):
        rows[name] = getattr(decisions, name)[gone]
    return rows


def decide_all(
    scanner: Scanner,
    paths: Sequence[Path],
    log: DecisionLog,
    scratch: Path,
    *,
    same: bool = False,
    similar: Similar | None = None,
    workers: int,
) -> tuple[list[int], list[int], int]:
    """Decide over all shards in order, with all n-grams of kept text in memory.

    Returns:
        numbers of the first document and the first paragraph of each shard, and how many n-grams were held.

    Args:
        same: documents with the tokens and paragraphs of an earlier one go.
        similar: documents that go because they are like another one.

    Raises:
        ValueError: if a shard cannot be read, or there are more than 4.29 billion paragraphs.
    """
    table, whole = scanner.engine.table(), scanner.engine.table()
    total_bytes = text_size(paths)
    ordinal = documents = seen_bytes = seen_tokens = 0
    first_documents, first_paragraphs = list[int](), list[int]()
    for shard, batch in scanner.batches_of_all(paths, scratch, workers=workers):
        while len(first_paragraphs) <= shard:
            first_documents.append(documents)
            first_paragraphs.append(ordinal)
        scan = batch.scan
        if ordinal + scan.num_paragraphs > MAX_ORDINAL:
            raise ValueError("there are more than 4.29 billion paragraphs; deduplicate the corpora in parts, or use --paragraphs document")
        fixed = fixed_by(batch.hits, scan.num_paragraphs)
        if same:
            _mark_same(whole, scan, ordinal, fixed)
        if similar is not None:
            mark_similar(similar, documents, scan.document_paragraph, fixed)
        decisions = Decisions.empty(scan.num_paragraphs)
        decisions.verdict[:] = fixed["verdict"]
        table.decide(scan, scanner.settings, ordinal, decisions)
        log.append(shard, batch, decisions, fixed, document=documents - first_documents[shard], ordinal=ordinal)
        ordinal += scan.num_paragraphs
        documents += scan.num_documents
        if seen_bytes < _SAMPLE_BYTES <= seen_bytes + batch.text_bytes:
            # One sample tells how many tokens there will be about; to grow again and again takes longer than all the rest.
            table.reserve(int((seen_tokens + len(scan.hashes)) / (seen_bytes + batch.text_bytes) * total_bytes))
        seen_bytes += batch.text_bytes
        seen_tokens += len(scan.hashes)
    missing = len(paths) - len(first_paragraphs)
    return first_documents + [documents] * missing, first_paragraphs + [ordinal] * missing, len(table)


def text_size(paths: Iterable[Path]) -> int:
    """Bytes of files without their compression, about: gzip says it (modulo 4 GiB), Parquet too, the others are as dense as they begin."""
    total = 0
    for path in paths:
        size = path.stat().st_size
        if compression_of(path) == ".gz" and 18 < size < _SURE_GZIP_BYTES:
            with open(path, "rb") as file:
                file.seek(-4, os.SEEK_END)
                size = max(size, struct.unpack("<I", file.read(4))[0])
        elif compression_of(path):
            size = round(size * density(path))
        elif path.suffix.lower() == ".parquet":
            size = unpacked_size(path)
        total += size
    return total


def _mark_same(whole: Table, scan: Scan, ordinal: int, fixed: NDArray[Any]) -> None:
    """Mark documents whose paragraphs are all those of an earlier document, in their order."""
    starts = scan.document_paragraph
    first = whole.first(document_hashes(scan), (ordinal + starts[:-1]).astype(np.uint32), MAX_ORDINAL)
    for document in np.flatnonzero(first != MAX_ORDINAL).tolist():
        fixed[starts[document] : starts[document + 1]] = SAME_DOCUMENT, first[document], 0


def mark_similar(similar: Similar, first_document: int, document_paragraph: NDArray[np.int64], fixed: NDArray[Any]) -> None:
    """Mark documents that are like another one, but those of which something is marked already.

    Args:
        document_paragraph: (num_documents + 1,) first paragraph of each; the last number is that of all paragraphs.
        fixed: (num_paragraphs,) `FIXED`, changed in place.
    """
    for document, other, share in zip(*(array.tolist() for array in similar.among(first_document, len(document_paragraph) - 1))):
        paragraphs = slice(*document_paragraph[document : document + 2].tolist())
        if not fixed["verdict"][paragraphs].any():
            fixed[paragraphs] = SIMILAR_DOCUMENT, other, share


def fixed_by(hits: NDArray[np.int64] | None, num_paragraphs: int) -> NDArray[Any]:
    """(num_paragraphs,) `FIXED` by the protected texts alone.

    Args:
        hits: (num_paragraphs,) number of the protected text that each repeats, 0 for none.
    """
    fixed = np.zeros(num_paragraphs, FIXED)
    if hits is not None:
        fixed["verdict"][hits > 0] = CONTAMINATED
        fixed["source"][hits > 0] = hits[hits > 0]
    return fixed


def document_hashes(scan: Scan) -> NDArray[np.uint64]:
    """(num_documents,) of the paragraphs of each and their order; 0 where there is none."""
    starts = scan.document_paragraph.tolist()
    return np.array(
        [xxhash.xxh3_64_intdigest(scan.paragraph_hash[a:b].tobytes()) if b > a else 0 for a, b in zip(starts, starts[1:])], dtype=np.uint64
    )
