"""Hours, memory and disk of each stage for a corpus of some size on some machines.  Rates in, figures out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data_prep.planning.rates import LEAST_MEMORY_GIB, Rates, StageRate

_GB = 1e9
# Memory of the process that leads, which holds this of each document at its end: ids to compare (`duplicate_ids`), lengths
# and lines for the index (`megatron.shard.join`).  Caches of words and batches are in the peak of the sample.
_BYTES_A_DOCUMENT = {"collect": 48, "clean": 48, "dedup": 0, "mixture": 0, "to_megatron": 32}


@dataclass(frozen=True)
class Machines:
    """What the work may use; `memory_gib` of a worker, for deduplication."""

    nodes: int = 1
    workers: int = 1
    memory_gib: float = 2.0


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
    made, on_disk = list[Prediction](), rates.disk_per_byte * text_bytes
    for rate in rates.stages:
        made.append(_of_stage(rate, rates, text_bytes, on_disk, machines))
        text_bytes, on_disk = text_bytes * rate.kept_per_byte, made[-1].output_bytes
    return made


def _of_stage(rate: StageRate, rates: Rates, text_bytes: float, on_disk: float, machines: Machines) -> Prediction:
    output = rate.output_per_byte * text_bytes
    alone = rates.digest_seconds_per_gb * (on_disk + output) / _GB
    shared = max(0.0, rate.seconds_per_gb * text_bytes / _GB - alone)
    tasks = max(0.0, machines.memory_gib - LEAST_MEMORY_GIB) * 2**30 if rate.stage == "dedup" else 0.0
    documents = rates.documents_per_byte * text_bytes
    return Prediction(
        rate.stage,
        text_bytes,
        cpu_seconds=rate.start_seconds + shared + alone,
        seconds=rate.start_seconds + shared / (machines.nodes * machines.workers) + alone,
        node_bytes=(rate.peak_bytes + tasks) * (machines.workers + (machines.workers > 1)) + _BYTES_A_DOCUMENT[rate.stage] * documents,
        output_bytes=output,
        scratch_bytes=rate.scratch_per_byte * text_bytes,
    )


def total_disk(predictions: Sequence[Prediction]) -> float:
    """With the outputs of all stages kept, and the scratch of the one that takes most."""
    return sum(made.output_bytes for made in predictions) + max(made.scratch_bytes for made in predictions)
