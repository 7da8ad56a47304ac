"""Hours, memory and disk of each stage for a corpus of some size on some machines.  Rates in, figures out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data_prep.deduplication.needs import file_bytes as of_file
from data_prep.planning.rates import COMMANDS, INSTEAD, LEAST_MEMORY_GIB, Rates, StageRate
from data_prep.tokenizers.word_counts import MAX_DISTINCT_WORDS

_GB = 1e9
_WORDS_BYTES = 32 << 20  # of a generation of words and their tokens; of two the sample has filled one


@dataclass(frozen=True)
class Growth:
    """Bytes of memory that are held beside the peak on a sample, counted from the arrays that a stage makes.

    Attributes:
        document: of all, by the process that leads, at the end.
        file_document, file_line, file_short_line: of the largest file, by the worker that has it; of short lines the different ones.
        at_once: however much text there is.
    """

    document: float = 0
    file_document: float = 0
    file_line: float = 0
    file_short_line: float = 0
    at_once: float = 0


_IDS = 18  # hash and line of a document, in an array that grows by an eighth
_SEEN = 116  # of a text that may come again: a number in a set that is being made larger
GROWTH = {
    "collect": Growth(document=9, file_document=_IDS),
    "clean": Growth(document=9, file_document=_IDS + _SEEN),
    "clean --filters web": Growth(document=9, file_document=_IDS + _SEEN, file_short_line=250),
    "dedup --similar-documents": Growth(document=52),
    "mixture": Growth(file_document=100, at_once=_WORDS_BYTES),
    "to_megatron": Growth(document=32, file_document=24, at_once=_WORDS_BYTES),
}


_READ_TWICE = "clean --filters web"  # `dedup` too, but only without --memory, which a plan has


@dataclass(frozen=True)
class Machines:
    """What the work may use, and how its text is cut.

    Attributes:
        memory_gib: of a worker, for deduplication.
        file_bytes: text of the largest input file, of which the worker that has it holds something.
        kept_bytes: of text, for what one worker alone reads twice.
    """

    nodes: int = 1
    workers: int = 1
    memory_gib: float = 2.0
    file_bytes: float = 1e9
    kept_bytes: float = 0.0

    @property
    def is_one_worker(self) -> bool:
        """Whether one process does all."""
        return self.nodes == self.workers == 1


@dataclass(frozen=True)
class Prediction:
    """What a stage will take.

    Attributes:
        text_bytes: that it reads.
        cpu_seconds: of all processors together.
        seconds: on the clock: the workers' share of that, and what one process does alone.
        node_bytes: memory of the node whose process leads, the others need less.
        output_bytes, scratch_bytes: of disk, afterwards and beside it meanwhile.
    """

    stage: str
    text_bytes: float
    cpu_seconds: float
    seconds: float
    node_bytes: float
    output_bytes: float
    scratch_bytes: float


def predict(rates: Rates, text_bytes: float, machines: Machines) -> list[Prediction]:
    """All stages, each on what the one before it leaves of the text.

    The digests of input and output are one process's; the rest is shared.  What several workers take from each other (memory bandwidth, disks) is
    not known from a run of one, and is not in it.
    """
    made: dict[str, Prediction] = {}
    for rate in rates.stages:
        before = COMMANDS[rate.stage]
        if before:
            earlier = next(earlier for earlier in rates.stages if earlier.stage == before)
            text, on_disk = made[before].text_bytes * earlier.kept_per_byte, made[before].output_bytes
        else:
            text, on_disk = text_bytes, rates.disk_per_byte * text_bytes
        made[rate.stage] = _of_stage(rate, rates, text, on_disk, machines)
    return list(made.values())


def _of_stage(rate: StageRate, rates: Rates, text_bytes: float, on_disk: float, machines: Machines) -> Prediction:
    # A tokenizer is as large as its vocabulary, however much text it is made of.
    output = rate.output_per_byte * (rates.sample_bytes if rate.stage == "train_tokenizer" else text_bytes)
    alone = rates.digest_seconds_per_gb * (on_disk + output) / _GB
    shared = max(0.0, rate.seconds_per_gb * text_bytes / _GB - alone)
    return Prediction(
        rate.stage,
        text_bytes,
        cpu_seconds=rate.start_seconds + shared + alone,
        seconds=rate.start_seconds + shared / (machines.nodes * machines.workers) + alone,
        node_bytes=_memory(rate, rates, text_bytes, machines),
        output_bytes=output,
        scratch_bytes=rate.scratch_per_byte * text_bytes,
    )


def _memory(rate: StageRate, rates: Rates, text_bytes: float, machines: Machines) -> float:
    """Of a node: its workers, and where there are several the process that leads, with what that holds of all text."""
    growth = GROWTH.get(rate.stage, Growth())
    file_bytes = min(machines.file_bytes, text_bytes)
    documents = rates.documents_per_byte * file_bytes
    worker = rate.peak_bytes + growth.at_once + growth.file_document * documents
    worker += file_bytes * (growth.file_line * rates.lines_per_byte + growth.file_short_line * rates.short_lines_per_byte)
    if machines.is_one_worker and rate.stage == _READ_TWICE:
        worker += max(0.0, min(text_bytes, machines.kept_bytes) - rates.sample_bytes)  # of the sample it is in the peak
    leads = growth.document * rates.documents_per_byte * text_bytes
    if rate.stage == "train_tokenizer":
        leads += _of_words(rates, text_bytes)
    if INSTEAD.get(rate.stage, rate.stage) == "dedup":
        # --memory is what a task and the file at hand take together, if it is enough for the least task beside the file.
        least = LEAST_MEMORY_GIB * 2**30
        of_this = of_file(rates.lines_per_byte * file_bytes, documents, removed=1 - rate.kept_per_byte)
        tasks = max(machines.memory_gib * 2**30, least + of_this) - least
        if machines.workers == 1:  # one process does both, one after the other
            return rate.peak_bytes + max(tasks, leads)
        worker += tasks
    return worker * machines.workers + (rate.peak_bytes if machines.workers > 1 else 0) + leads


def _of_words(rates: Rates, text_bytes: float) -> float:
    """Of the table of words, beyond those of the sample."""
    number, power = rates.distinct_words
    expected = number * (text_bytes / rates.sample_bytes) ** power
    return rates.bytes_a_word * max(0.0, min(expected, MAX_DISTINCT_WORDS) - number)


def in_a_row(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those of one preparation, without what may take their place."""
    return [made for made in predictions if made.stage not in INSTEAD]


def total_disk(predictions: Sequence[Prediction]) -> float:
    """With the outputs of all stages kept, and the scratch of the one that takes most."""
    return sum(made.output_bytes for made in in_a_row(predictions)) + max(made.scratch_bytes for made in predictions)
