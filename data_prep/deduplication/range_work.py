"""What the tasks of deduplication by ranges of hashes have in common: where each leaves what the others read, and how large a task may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.deduplication.decisions import DecisionLog
from data_prep.sharing.scanning import Scanner

# Bytes at the peak of a task, counted from its arrays and measured (tests/data_prep/deduplication/test_dedup_ranges.py, docs/data.md).
RUN_BYTES_A_TOKEN = 72
RANGE_BYTES_A_TOKEN = 56
SPILLED_BYTES_A_TOKEN = 13  # of disk: hashes and their order, then where repeated ones lie
_MAX_BITS = 16
_LEAST_RUN_TOKENS = 1 << 12


@dataclass(frozen=True)
class RangeWork:
    """Deduplication cut into runs of text and ranges of hashes, each small enough for the memory of a worker.

    Attributes:
        directory: of what the tasks leave for each other.
        log: of what is decided.
        bits: the top bits of a hash are the number of its range.
        run_tokens: after so many tokens a shard begins a new run, at the end of a batch of documents.
        state: of all input files together; what was made of others is not used.
    """

    scanner: Scanner
    paths: tuple[Path, ...]
    directory: Path
    log: DecisionLog
    bits: int
    run_tokens: int
    same_documents: bool = False
    state: str = ""

    @property
    def num_ranges(self) -> int:
        """Ranges of hashes."""
        return 1 << self.bits

    def of_shard(self, shard: int) -> Path:
        """What is known of a file of text."""
        return self.directory / f"shard_{shard:06d}"

    def of_run(self, run: Run) -> Path:
        """What is known of a run, as the beginning of file names."""
        return self.of_shard(run.shard) / f"run_{run.number:05d}"

    def of_range(self, number: int) -> Path:
        """What is known of a range of hashes."""
        return self.directory / f"range_{number:05d}"


@dataclass(frozen=True)
class Run:
    """A stretch of whole documents of a shard."""

    shard: int
    number: int


@dataclass(frozen=True)
class ShardShape:
    """How much a file of text holds."""

    num_documents: int
    num_paragraphs: int
    num_tokens: int
    num_runs: int
    text_bytes: int


@dataclass(frozen=True)
class Layout:
    """Where each shard begins in the whole text.

    Attributes:
        runs: of all shards, in order; a run's place here is its number in the files of a range.
        first_paragraphs, first_documents, first_runs: numbers of the first of each shard, and of all behind the last.
    """

    runs: tuple[Run, ...]
    first_paragraphs: tuple[int, ...]
    first_documents: tuple[int, ...]
    first_runs: tuple[int, ...]

    @classmethod
    def of(cls, shapes: Sequence[ShardShape]) -> Layout:
        """Of shards in order."""
        runs = tuple(Run(shard, number) for shard, shape in enumerate(shapes) for number in range(shape.num_runs))
        counts = ((shape.num_paragraphs, shape.num_documents, shape.num_runs) for shape in shapes)
        paragraphs, documents, first_runs = [0], [0], [0]
        for num_paragraphs, num_documents, num_runs in counts:
            paragraphs.append(paragraphs[-1] + num_paragraphs)
            documents.append(documents[-1] + num_documents)
            first_runs.append(first_runs[-1] + num_runs)
        return cls(runs, tuple(paragraphs), tuple(documents), tuple(first_runs))


def cut_for(memory_bytes: int, num_tokens: int) -> tuple[int, int]:
    """(bits, run_tokens) with which no task needs much more than so much memory.

    Args:
        num_tokens: of the whole text, about.
    """
    ranges = max(2, -(-num_tokens * RANGE_BYTES_A_TOKEN // max(memory_bytes, 1)))
    bits = min(_MAX_BITS, max(1, (ranges - 1).bit_length()))
    return bits, max(_LEAST_RUN_TOKENS, memory_bytes // RUN_BYTES_A_TOKEN)
