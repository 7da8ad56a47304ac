"""Memory and disk requirements of deduplication, estimated from a sample, and the number of passes that fits the free memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from data_prep.deduplication.decisions import text_size
from data_prep.deduplication.range_work import SPILLED_BYTES_A_TOKEN, cut_for
from data_prep.sharing.scanning import Scanner

ONE_PASS_BYTES_A_TOKEN = 24  # of the table of n-grams at its least load
# With two passes a worker holds this of the file at hand beside its task: how long paragraphs are and what is known of each (`_Shape`, `FIXED`,
# whether it is kept), or, while it writes, the rows of those that go, of which there are at most as many.
_DECIDING_BYTES, _WRITING_BYTES = (33, 56), (57, 24)  # a paragraph, and a document
_ALWAYS_BYTES = 200 << 20  # the program and a batch of documents
_USED_SHARE = 0.7  # of what is free: the system wants its cache, and estimates are none too exact
_LEAST_BYTES = 64 << 20
_WORD_BYTES, _BAND_BYTES = 4, 8  # of documents that are compared as a whole, on disk: of each word, and of each band and document
_SAMPLE_FILES = 4


@dataclass(frozen=True)
class TextSize:
    """About how much text there is.

    Attributes:
        text_bytes: of the files without their compression.
        largest_documents, largest_paragraphs: of the file that has most text.
    """

    num_files: int
    disk_bytes: int
    text_bytes: int
    num_tokens: int
    largest_documents: int = 0
    largest_paragraphs: int = 0
    num_documents: int = 0

    @classmethod
    def estimate(cls, scanner: Scanner, paths: Sequence[Path]) -> TextSize:
        """From the beginnings of up to four files.

        Raises:
            ValueError: if one cannot be read.
        """
        disk_bytes, sizes = sum(path.stat().st_size for path in paths), [text_size([path]) for path in paths]
        sampled = [batch for path in paths[:: -(-len(paths) // _SAMPLE_FILES)] for batch in islice(scanner.batches(path), 1)]
        sampled_bytes = max(sum(batch.text_bytes for batch in sampled), 1)
        num_tokens = max(sum(len(batch.scan.hashes) for batch in sampled), 1)
        largest = max(sizes, default=0) / sampled_bytes
        documents = sum(batch.scan.num_documents for batch in sampled)
        return cls(
            len(paths),
            disk_bytes,
            sum(sizes),
            int(sum(sizes) / max(sampled_bytes / num_tokens, 1)),
            int(largest * documents),
            int(largest * sum(batch.scan.num_paragraphs for batch in sampled)),
            int(sum(sizes) / sampled_bytes * documents),
        )


@dataclass(frozen=True)
class Cut:
    """How the work is done.

    Attributes:
        passes: 1 with all n-grams of kept text in one table, 2 by ranges of hashes.
        memory_bytes: with two passes, of a task.
        bits, run_tokens: see `RangeWork`.
        disk_bytes: free space that it takes.
    """

    passes: int
    memory_bytes: int
    bits: int
    run_tokens: int
    disk_bytes: int


def choose(size: TextSize, *, free_bytes: int, workers: int, passes: int | None, memory_bytes: int | None, similar_bands: int = 0) -> Cut:
    """One pass if its table fits, else tasks that fit the memory of a worker.

    Args:
        free_bytes: memory of this machine.
        passes, memory_bytes: what was asked for, of a worker; None for a choice.
        similar_bands: of documents that are compared as a whole, before all else.

    Raises:
        ValueError: if one pass was asked for and does not fit.
    """
    usable = int(_USED_SHARE * free_bytes)
    table = one_pass_bytes(size)
    if passes == 1:
        for limit, whose in ((memory_bytes, "in --memory"), (free_bytes, "free")):
            if limit is not None and table > limit:
                raise ValueError(
                    f"--passes 1 needs {_gib(table)} of memory for about {size.num_tokens:,} tokens, but there are {_gib(limit)} {whose}; leave out"
                    " --passes, or give --passes 2, whose output is the same"
                )
    if passes is None:
        passes = 1 if table <= min(usable, memory_bytes or usable) else 2
    of_worker = memory_bytes or (usable - _ALWAYS_BYTES) // workers
    memory_bytes = max(_LEAST_BYTES, of_worker - file_bytes(size.largest_paragraphs, size.largest_documents))
    spilled = SPILLED_BYTES_A_TOKEN * size.num_tokens if passes == 2 else 0
    similar = _WORD_BYTES * size.num_tokens + _BAND_BYTES * similar_bands * size.num_documents if similar_bands else 0
    return Cut(passes, memory_bytes, *cut_for(memory_bytes, size.num_tokens), disk_bytes=max(size.disk_bytes + spilled, similar))


def one_pass_bytes(size: TextSize) -> int:
    """Memory of one pass."""
    return ONE_PASS_BYTES_A_TOKEN * size.num_tokens + _ALWAYS_BYTES


def file_bytes(num_paragraphs: float, num_documents: float, *, removed: float = 1.0) -> int:
    """Memory with two passes that grows with the file at hand, beside that of a task.

    Args:
        removed: share of the paragraphs that are removed, which is not known before.
    """
    deciding = _DECIDING_BYTES[0] * num_paragraphs + _DECIDING_BYTES[1] * num_documents
    writing = _WRITING_BYTES[0] * num_paragraphs * removed + _WRITING_BYTES[1] * num_documents
    return int(max(deciding, writing))


def sentence(size: TextSize, cut: Cut, *, free_bytes: int, workers: int, substrings: bool = False) -> str:
    """What is about to happen, and what it needs."""
    files = f"{size.num_files} file{'s' * (size.num_files > 1)}"
    what = f"about {_shown(size.text_bytes, 1000, 'kB', 'MB', 'GB', 'TB')} of text, {size.num_tokens:,} tokens, in {files}"
    one = f"one pass needs {_gib(one_pass_bytes(size))} of memory, {_gib(free_bytes)} are free"
    if cut.passes == 1:
        how = f"one pass, {_gib(cut.disk_bytes)} of disk"
    else:
        of_worker = cut.memory_bytes + file_bytes(size.largest_paragraphs, size.largest_documents)
        how = f"two passes in {1 << cut.bits} ranges, {_gib(of_worker)} for each of {workers} workers, {_gib(cut.disk_bytes)} of disk"
    spans = f"; then up to {_gib(one_pass_bytes(size))} of memory of one process for repeated spans" if substrings else ""
    return f"{what}; {one}: {how}{spans}"


def _gib(count: int) -> str:
    return _shown(count, 1024, "KiB", "MiB", "GiB", "TiB")


def _shown(count: int, step: int, *units: str) -> str:
    """With three digits, in the largest unit of which it is at least one."""
    power = max((power for power in range(1, len(units) + 1) if count >= step**power), default=1)
    return f"{count / step**power:.3g} {units[power - 1]}"
