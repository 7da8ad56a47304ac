"""The output of deduplication: shards of kept text, lists of removals with reasons, and the tables over both."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.tables import markdown_table
from data_prep.deduplication.decisions import DecisionLog
from data_prep.deduplication.onion_types import CONTAMINATED, NEAR_DUPLICATE, REASONS, SAME_DOCUMENT, SIMILAR_DOCUMENT, Scan
from data_prep.reading.blocks import Block
from data_prep.reading.documents import BadInput
from data_prep.sharing.scanning import Scanner
from data_prep.sharing.shards import JsonLinesWriter

PROTECTED = "(protected)"
_MAX_MESSAGES = 20


@dataclass
class Sources:
    """Finds the document of a paragraph's ordinal.

    Attributes:
        shards: corpus and file name of each shard.
        first_documents, first_paragraphs: numbers of the first of each shard.
        protected: file and line of each protected document.
    """

    log: DecisionLog
    shards: Sequence[tuple[str, str]]
    first_documents: Sequence[int]
    first_paragraphs: Sequence[int]
    protected: Sequence[tuple[str, int]]
    _places: dict[int, NDArray[Any]] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_places": {}}

    def describe(self, verdict: int, source: int) -> tuple[str, dict[str, Any]]:
        """Corpus and place of what a removed paragraph repeats.

        Args:
            source: see `DecisionLog.append`.
        """
        if source < 0:
            return "", {}
        if verdict == CONTAMINATED:
            file, line = self.protected[source - 1]
            return PROTECTED, {"corpus": PROTECTED, "file": file, "line": line}
        is_document = verdict == SIMILAR_DOCUMENT
        shard = bisect_right(self.first_documents if is_document else self.first_paragraphs, source) - 1
        if shard not in self._places:
            self._places[shard] = self.log.places(shard)
        places, (corpus, file) = self._places[shard], self.shards[shard]
        if is_document:
            return corpus, {"corpus": corpus, "file": file, "line": int(places["line"][source - self.first_documents[shard]])}
        document = int(np.searchsorted(places["first_paragraph"], source, side="right")) - 1
        place = {"corpus": corpus, "file": file, "line": int(places["line"][document])}
        return corpus, {**place, "paragraph": source - int(places["first_paragraph"][document]) + 1}


@dataclass
class Amount:
    """Some text: paragraphs, tokens and bytes."""

    paragraphs: int = 0
    tokens: int = 0
    text_bytes: int = 0

    def add(self, other: Amount) -> None:
        """Add another amount to this."""
        self.paragraphs += other.paragraphs
        self.tokens += other.tokens
        self.text_bytes += other.text_bytes


@dataclass
class DedupCounts:
    """What went in and what became of it, of a shard or a corpus.

    Attributes:
        documents: how many were `whole` (kept as they are), `shortened`, `removed`, `empty`.
        read, kept: text.
        removed: (corpus that has it already or "", reason) -> text.
        bad_input: reason -> how often; `messages` are the first of them.
    """

    documents: Counter[str] = field(default_factory=Counter)
    read: Amount = field(default_factory=Amount)
    kept: Amount = field(default_factory=Amount)
    removed: dict[tuple[str, str], Amount] = field(default_factory=lambda: defaultdict(Amount))
    bad_input: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)

    def add(self, other: DedupCounts) -> None:
        """Add what another shard has."""
        self.documents.update(other.documents)
        self.read.add(other.read)
        self.kept.add(other.kept)
        for pair, amount in other.removed.items():
            self.removed[pair].add(amount)
        self.bad_input.update(other.bad_input)
        self.messages = (self.messages + other.messages)[:_MAX_MESSAGES]

    def as_facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "documents": dict(self.documents),
            "read": vars(self.read),
            "kept": vars(self.kept),
            "removed": [
                {"repeats_corpus": corpus, "reason": reason, **vars(amount)} for (corpus, reason), amount in sorted(self.removed.items())
            ],
            "bad_input": dict(self.bad_input),
            "bad_input_messages": self.messages,
        }


Job = tuple[Scanner, Path, str, int, DecisionLog, Sources, Path, Path]


def write_shard(job: Job) -> DedupCounts:
    """Write what is kept of a shard and the list of what is not, and count both."""
    scanner, path, corpus, shard, log, sources, text_path, removed_path = job
    removed = log.removed(shard)
    owners = np.ascontiguousarray(removed["document"])
    places = log.places(shard) if scanner.comparison.is_exact else None
    counts = DedupCounts()
    bad: list[BadInput] = []
    before = 0
    with JsonLinesWriter(text_path) as text_file, JsonLinesWriter(removed_path) as removed_file:
        for block in scanner.reading.blocks(path, bad):
            here = slice(before, before + len(block))
            if places is not None:
                num_paragraphs, num_tokens = places["paragraphs"][here].astype(np.int64), places["tokens"][here].astype(np.int64)
            else:  # tokens were counted where marks are apart, or gone
                num_paragraphs, num_tokens = _amounts(scanner.engine.scan(block.texts(), scanner.settings))
            rows = _by_document(removed[slice(*np.searchsorted(owners, (before, before + len(block))).tolist())])
            touched = [document for document in range(len(block)) if before + document in rows]
            _count_untouched(counts, block, num_paragraphs, num_tokens, touched)
            written = 0
            for document, layout in zip(touched, _layouts(scanner, block, touched)):
                _write_whole(text_file, block, num_paragraphs, written, document, path.name)
                written = document + 1
                gone = rows[before + document]
                kept = _kept_text(block.data(document), layout.spans, gone)
                identity = block.identity(document, path.name)
                for paragraph, row in gone.items():
                    source_corpus, repeats = sources.describe(int(row["verdict"]), int(row["source"]))
                    counts.removed[source_corpus, REASONS[row["verdict"]]].add(layout.amount(paragraph))
                    place = {
                        "corpus": corpus,
                        "file": path.name,
                        "line": int(block.lines[document]),
                        "id": identity,
                        "paragraph": paragraph + 1,
                    }
                    removed_file.write(place | _why(row, repeats, scanner.settings.score))
                counts.documents["shortened" if kept else "removed"] += 1
                if kept:
                    left = [tokens for paragraph, tokens in enumerate(layout.tokens) if paragraph not in gone]
                    counts.kept.add(Amount(len(left), sum(left), len(kept)))
                    text_file.write_lines(block.json_line(document, kept, path.name))
            _write_whole(text_file, block, num_paragraphs, written, len(block), path.name)
            before += len(block)
    counts.bad_input.update(item.reason for item in bad)
    counts.messages = [item.message for item in bad[:_MAX_MESSAGES]]
    return counts


@dataclass(frozen=True)
class _Layout:
    """The paragraphs of a document.

    Attributes:
        spans: the byte where each begins, and the bytes of all.
        tokens: of each.
    """

    spans: Sequence[int]
    tokens: Sequence[int]

    def amount(self, paragraph: int) -> Amount:
        """One of them."""
        return Amount(1, self.tokens[paragraph], self.spans[paragraph + 1] - self.spans[paragraph])


def _layouts(scanner: Scanner, block: Block, documents: Sequence[int]) -> Iterator[_Layout]:
    texts = [block.data(document) for document in documents]
    scan = scanner.engine.scan(texts, scanner.settings)
    start = 0
    for text, first, last in zip(texts, scan.document_paragraph, scan.document_paragraph[1:]):
        yield _Layout([*(scan.paragraph_byte[first:last] - start).tolist(), len(text)], scan.paragraph_tokens[first:last].tolist())
        start += len(text)


def _amounts(scan: Scan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Paragraphs and tokens of each document."""
    ends = np.append(scan.paragraph_token, len(scan.hashes))
    return np.diff(scan.document_paragraph), np.diff(ends[scan.document_paragraph])


def _count_untouched(
    counts: DedupCounts, block: Block, num_paragraphs: NDArray[np.int64], num_tokens: NDArray[np.int64], touched: Sequence[int]
) -> None:
    """Count what is read of all documents, and what became of those that nothing was removed from."""
    sizes = np.diff(block.offsets)
    counts.read.add(Amount(int(num_paragraphs.sum()), int(num_tokens.sum()), int(sizes.sum())))
    whole = num_paragraphs > 0
    if empty := len(block) - int(whole.sum()):
        counts.documents["empty"] += empty
    whole[list(touched)] = False
    if whole.any():
        counts.documents["whole"] += int(whole.sum())
        counts.kept.add(Amount(int(num_paragraphs[whole].sum()), int(num_tokens[whole].sum()), int(sizes[whole].sum())))


def _write_whole(file: JsonLinesWriter, block: Block, num_paragraphs: NDArray[np.int64], first: int, last: int, file_name: str) -> None:
    """Write the documents of a stretch, but those without a token."""
    file.write_lines(block.json_lines(first + np.flatnonzero(num_paragraphs[first:last]), file_name))


def _by_document(rows: NDArray[Any]) -> dict[int, dict[int, Any]]:
    by_document: dict[int, dict[int, Any]] = defaultdict(dict)
    for row in rows:
        by_document[int(row["document"])][int(row["paragraph"])] = row
    return by_document


def _kept_text(text: bytes, spans: Sequence[int], gone: Mapping[int, Any]) -> bytes:
    """The text without some paragraphs; without line breaks at its end if the last one went."""
    if not gone:
        return text
    last = len(spans) - 2
    kept = b"".join(text[spans[p] : spans[p + 1]] for p in range(last + 1) if p not in gone)
    return kept.rstrip(b"\r\n") if last in gone else kept


def _why(row: Any, repeats: dict[str, Any], score: str) -> dict[str, Any]:
    tokens, possible, repeated = int(row["tokens"]), int(row["possible"]), int(row["repeated"])
    why: dict[str, Any] = {"reason": REASONS[row["verdict"]], "tokens": tokens}
    if row["verdict"] == NEAR_DUPLICATE:
        share = repeated / possible if score == "ngrams" else int(row["covered"]) / tokens
        # Of the seen n-grams, those that the named paragraph was the first to bring.
        repeats["share_of_ngrams"] = round(int(row["source_ngrams"]) / possible, 4)
        why["share"] = round(share, 4)
    elif row["verdict"] == SIMILAR_DOCUMENT:
        why["share"] = round(float(row["share"]), 4)
    if repeats and row["verdict"] == SAME_DOCUMENT:
        repeats.pop("paragraph")
    return why | ({"repeats": repeats} if repeats else {})


def report(names: Sequence[str], counts: Sequence[DedupCounts]) -> str:
    """The tables in Markdown."""
    total = DedupCounts()
    for count in counts:
        total.add(count)
    rows = [_corpus_row(name, count) for name, count in [*zip(names, counts), ("all", total)]]
    header = ("corpus", "documents", "whole", "shortened", "removed", "empty", "tokens", "kept", "MB", "kept MB", "kept %")
    text = "# Deduplication\n\n" + markdown_table(header, rows) + "\n"
    pairs = [
        (name, corpus or "-", reason, f"{amount.paragraphs:,}", f"{amount.tokens:,}", f"{amount.text_bytes / 1e6:.2f}")
        for name, count in zip(names, counts)
        for (corpus, reason), amount in sorted(count.removed.items())
    ]
    if pairs:
        text += "\nRemoved, by the corpus that has it already:\n\n"
        text += markdown_table(("from", "repeats", "reason", "paragraphs", "tokens", "MB"), pairs, text_columns=3) + "\n"
    if total.bad_input:
        text += "\nSkipped: " + ", ".join(f"{count:,} x {reason}" for reason, count in sorted(total.bad_input.items())) + "\n\n"
        text += "".join(f"- {message}\n" for message in total.messages)
    return text


def _corpus_row(name: str, count: DedupCounts) -> list[str]:
    states = [f"{count.documents[state]:,}" for state in ("whole", "shortened", "removed", "empty")]
    share = 100 * count.kept.text_bytes / max(count.read.text_bytes, 1)
    sizes = [f"{count.read.tokens:,}", f"{count.kept.tokens:,}", f"{count.read.text_bytes / 1e6:.2f}", f"{count.kept.text_bytes / 1e6:.2f}"]
    return [name, f"{count.documents.total():,}", *states, *sizes, f"{share:.1f}"]
