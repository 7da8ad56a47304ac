"""Exact substring deduplication: spans of many tokens that occur earlier in the text are removed from documents.

A token goes if it lies in a window of N tokens that is the same as one that begins earlier, in an earlier document or in its own.  These are
the spans of at least N tokens that occur twice, which Lee et al. (2022, "Deduplicating Training Data Makes Language Models Better") find by a
suffix array: a token lies in a repeated span of at least N tokens if and only if it lies in a repeated window of N, so a table of windows finds the
same ones, in one pass and in order, and takes as much memory for spans of 50 tokens as for those of 5,000.  Each token that goes has an earlier one that stays, in the same words.

Windows are known by 64-bit hashes, 16 to 24 bytes of memory each; a token is what stands between white space.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.progress import Progress
from data_prep.deduplication.decisions import text_size
from data_prep.deduplication.onion import MAX_ORDINAL, engine
from data_prep.deduplication.onion_types import MAX_N, OnionSettings
from data_prep.reading.blocks import Block, read_blocks
from data_prep.sharing.shards import JsonLinesWriter, ordered_map

LEAST = 8
_SAMPLE_BYTES = 1 << 20
_SPAN = np.dtype([("document", "<i8"), ("first", "<i8"), ("last", "<i8"), ("source", "<u4")])
_TOKEN = re.compile(r"\S+")


@dataclass(frozen=True)
class Shard:
    """A file of kept text, the list of what is cut out of it, and the key of its text."""

    text_path: Path
    removed_path: Path
    corpus: str
    key: str


def require_length(num_tokens: int) -> None:
    """Refuse a length of spans.

    Raises:
        ValueError: naming the option.
    """
    if not LEAST <= num_tokens <= MAX_N:
        raise ValueError(f"--substrings is {num_tokens}; expected {LEAST} to {MAX_N:,} tokens, as shorter spans are in any two texts")


def cut_substrings(shards: Sequence[Shard], num_tokens: int, min_kept_tokens: int, scratch: Path, *, workers: int) -> dict[str, Any]:
    """Cut repeated spans out of files of JSON lines, in their order, and say how many there were.

    What is cut is listed in the other file of each shard: document, tokens (from 1), and the line of the document that had the span first.

    Args:
        min_kept_tokens: a document of which something is cut goes as a whole if fewer tokens would be left.
    """
    directory = scratch / "substrings"
    directory.mkdir(exist_ok=True)
    num_windows, places = _find(shards, num_tokens, directory)
    jobs = [(shard, directory / f"{number}.spans", places, min_kept_tokens) for number, shard in enumerate(shards)]
    counts = Counter[str]()
    for found in ordered_map(_cut_shard, jobs, workers=workers, name=lambda job: str(job[0].text_path)):
        counts.update(found)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    return {"num_tokens": num_tokens, "num_windows_in_memory": num_windows, **{name: counts[name] for name in _COUNTS}}


_COUNTS = ("documents_shortened", "documents_removed", "spans", "tokens_removed", "bytes_removed")


def spans_sentence(facts: Mapping[str, Any]) -> str:
    """What `cut_substrings` found, for the report."""
    return (
        f"Repeated spans of {facts['num_tokens']} tokens or more, cut out of what the tables above say is kept: {facts['spans']:,}, with"
        f" {facts['tokens_removed']:,} tokens and {facts['bytes_removed'] / 1e6:.2f} MB; {facts['documents_shortened']:,} documents are"
        f" shorter, {facts['documents_removed']:,} are gone."
    )


def _find(shards: Sequence[Shard], num_tokens: int, directory: Path) -> tuple[int, list[tuple[str, str, int]]]:
    """Write the spans of each shard; how many windows there are, and corpus, file and first document of each shard."""
    settings, loops = OnionSettings(n=num_tokens, paragraphs="document"), engine()
    table, ordinal, places = loops.table(), 0, []
    total_bytes, seen_bytes, seen_tokens = text_size(shard.text_path for shard in shards), 0, 0
    with Progress(
        "looking for repeated spans", total=sum(shard.text_path.stat().st_size for shard in shards), unit="B", is_bytes=True
    ) as bar:
        for number, shard in enumerate(shards):
            places.append((shard.corpus, shard.text_path.name, ordinal))
            spans, before = [np.zeros(0, _SPAN)], 0
            for block in read_blocks(shard.text_path, text_key=shard.key, progress=bar):
                scan = loops.scan(block.texts(), settings)
                starts = np.append(scan.paragraph_token, len(scan.hashes))[scan.document_paragraph]
                owner = np.repeat(np.arange(len(block)), np.diff(starts))
                first = table.first(scan.hashes, (ordinal + owner).astype(np.uint32), MAX_ORDINAL)
                spans.append(_spans(np.flatnonzero(first != MAX_ORDINAL), first, owner, starts, num_tokens, before))
                before += len(block)
                ordinal += len(block)
                if seen_bytes < _SAMPLE_BYTES <= seen_bytes + len(block.text):  # as in `decide_all`
                    table.reserve(int((seen_tokens + len(scan.hashes)) / (seen_bytes + len(block.text)) * total_bytes))
                seen_bytes += len(block.text)
                seen_tokens += len(scan.hashes)
            if ordinal >= MAX_ORDINAL:
                raise ValueError("there are more than 4.29 billion documents; deduplicate the corpora in parts")
            np.concatenate(spans).tofile(directory / f"{number}.spans")
    return len(table), places


def _spans(
    ends: NDArray[np.int64], first: NDArray[np.uint32], owner: NDArray[np.int64], starts: NDArray[np.int64], num_tokens: int, before: int
) -> NDArray[Any]:
    """Repeated windows, by the tokens that they end at, as spans: those that touch or overlap in a document are one."""
    found = np.zeros(len(ends), _SPAN)
    if not len(ends):
        return found
    document = owner[ends]
    new = np.empty(len(ends), bool)
    new[0] = True
    new[1:] = (document[1:] != document[:-1]) | (ends[1:] - num_tokens + 1 > ends[:-1] + 1)
    heads = np.flatnonzero(new)
    tails = np.append(heads[1:], len(ends)) - 1
    found = found[: len(heads)]
    found["document"] = before + document[heads]
    found["first"] = ends[heads] - num_tokens + 1 - starts[document[heads]]
    found["last"] = ends[tails] - starts[document[heads]]
    found["source"] = first[ends[heads]]
    return found


def _cut_shard(job: tuple[Shard, Path, list[tuple[str, str, int]], int]) -> Counter[str]:
    shard, spans_path, places, min_kept_tokens = job
    spans = np.fromfile(spans_path, _SPAN)
    counts = Counter[str]()
    name, before = shard.text_path.name, 0
    new_path = shard.text_path.with_name(f"without-spans-{name}")
    with JsonLinesWriter(new_path) as text_file, JsonLinesWriter(shard.removed_path) as removed_file:
        for block in read_blocks(shard.text_path, text_key=shard.key):
            here = spans[slice(*np.searchsorted(spans["document"], (before, before + len(block))).tolist())]
            written = 0
            for document in np.unique(here["document"]).tolist():
                number = document - before
                text_file.write_lines(block.json_lines(np.arange(written, number), name))
                written = number + 1
                own = here[here["document"] == document]
                for span in own:
                    removed_file.write(_why(block, number, span, places, shard, name))
                text, left = without_spans(block.data(number).decode(), list(zip(own["first"].tolist(), own["last"].tolist())))
                kept = text.encode() if left >= max(min_kept_tokens, 1) else b""
                counts["documents_shortened" if kept else "documents_removed"] += 1
                counts["spans"] += len(own)
                counts["tokens_removed"] += int((own["last"] - own["first"] + 1).sum()) + (0 if kept else left)
                counts["bytes_removed"] += len(block.data(number)) - len(kept)
                if kept:
                    text_file.write_lines(block.json_line(number, kept, name))
            text_file.write_lines(block.json_lines(np.arange(written, len(block)), name))
            before += len(block)
    os.replace(new_path, shard.text_path)
    return counts


def _why(block: Block, number: int, span: Any, places: Sequence[tuple[str, str, int]], shard: Shard, name: str) -> dict[str, Any]:
    source = int(span["source"])
    corpus, file, first = next(place for place in reversed(places) if place[2] <= source)
    return {
        "corpus": shard.corpus,
        "id": block.identity(number, name),
        "reason": "repeated-span",
        "tokens": [int(span["first"]) + 1, int(span["last"]) + 1],
        "repeats": {"corpus": corpus, "file": file, "document": source - first + 1},
    }


def without_spans(text: str, spans: Sequence[tuple[int, int]]) -> tuple[str, int]:
    """The text without some stretches of tokens, first and last of each, and how many tokens are left.

    Of the white space before and behind a stretch that is kept which has more line feeds.
    """
    tokens = [found.span() for found in _TOKEN.finditer(text)]
    pieces: list[str] = []
    at = 0  # the character that the next piece begins with
    left = len(tokens)
    for first, last in spans:
        left -= last - first + 1
        before, behind = tokens[first][0], tokens[last][1]
        following = tokens[last + 1][0] if last + 1 < len(tokens) else len(text)
        piece = text[at:before]
        kept = piece.rstrip()
        gap, next_gap = piece[len(kept) :], text[behind:following]
        is_edge = (not kept and not pieces) or following == len(text)
        pieces += [kept, "" if is_edge else max(gap, next_gap, key=lambda white: white.count("\n"))]
        if not any(pieces):
            pieces = []
        at = following
    return "".join(pieces) + text[at:], left
