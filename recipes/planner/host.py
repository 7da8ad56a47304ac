"""Bytes in the memory of a node's host while checkpoints are saved and loaded, and whether a node has them."""

from __future__ import annotations

from dataclasses import dataclass

from recipes.planner.layout import Layout
from recipes.planner.memory import GIB
from recipes.planner.parameters import PlannedModel

# Of each process: Python, NeMo and the libraries of CUDA and NCCL; assumed, as a process without those takes 1 GiB.
PROCESS_GIB = 3.0
_SAVED_BYTES = 12  # per trained number, in any precision: the 32-bit copy and both moments of Adam


@dataclass(frozen=True)
class HostEstimate:
    """The most that a node's processes hold together.

    Attributes:
        processes: of a node.
        save: bytes of what they write, which is copied to the host first, at once or beside the training.
        load: bytes of what they read: each its largest chunk, as it lies in the file and as a tensor.
    """

    processes: int
    save: float
    load: float

    @property
    def needed_gib(self) -> float:
        """What a node has to have, in GiB, with what the processes take themselves."""
        return max(self.save, self.load) / GIB + self.processes * PROCESS_GIB

    def __str__(self) -> str:
        return (
            f"at most {self.needed_gib:.0f} GiB of a node: {self.save / GIB:.1f} while saving, {self.load / GIB:.1f} while loading,"
            f" and {self.processes} processes of {PROCESS_GIB:g} (assumed)"
        )


def estimate_host(model: PlannedModel, layout: Layout) -> HostEstimate:
    """Memory of the node whose ranks are of the fullest pipeline stage.

    Every rank writes its own part of the optimizer's state.  The tensors of the model are dealt out whole among the replicas, so that one
    rank may get the largest.  A loaded chunk is a whole tensor of the checkpoint that the run starts from, or of a checkpoint of the run what
    one rank has saved of the optimizer's state.
    """
    item, replicas = 2 if layout.is_half else 4, layout.weight_copies
    largest = max(parameter.numel for parameter in model.parameters.values())
    saved = read = 0.0
    for stage in range(layout.pipeline_parallel_size):
        rank = model.rank(
            tensor_parallel_size=layout.tensor_parallel_size, pipeline_parallel_size=layout.pipeline_parallel_size, stage=stage
        )
        of_model = max(rank.held / replicas, min(rank.held, largest / layout.tensor_parallel_size)) * item
        saved = max(saved, rank.trained * _SAVED_BYTES / replicas + of_model)
        read = max(read, largest * item, 4 * min(largest / layout.tensor_parallel_size, rank.trained / replicas))
    processes = min(layout.devices_per_node, layout.num_devices)
    return HostEstimate(processes, save=processes * saved, load=processes * 2 * read)


def host_refusal(model: PlannedModel, layout: Layout, *, memory_gib: float, has: str) -> list[str]:
    """Nothing if a node holds what saving and loading take; else one sentence with the numbers.

    Args:
        has: what says how much a node has, as the sentence names it.
    """
    host = estimate_host(model, layout)
    if host.needed_gib <= memory_gib:
        return []
    return [
        f"saving and loading checkpoints take {host}, but {has} {memory_gib:g} GiB; spread the run over more nodes with fewer devices each"
        " (parallel.num_nodes, parallel.devices_per_node); parallel.check_memory=false tries it all the same"
    ]
