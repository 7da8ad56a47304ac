"""What a rank says to others, and the others, who say nothing: torch's process group "fake"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch.distributed as distributed
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, Work

from nemo_patches.fake_devices.world import Observer, simulated


class Started(Work):
    """A collective that has begun, until someone waits for it.

    Args:
        awaited: is called at the first wait.
    """

    def __init__(self, *awaited: Callable[[], None]) -> None:
        super().__init__()
        self._awaited = awaited
        _under_way.append(self)

    def wait(self, timeout: Any = None) -> bool:
        """Tell; on a GPU, work that is launched after this runs after the collective."""
        if self in _under_way:
            _under_way.remove(self)
            for tell in self._awaited:
                tell()
        return True

    def is_completed(self) -> bool:
        """Whether it is over: always."""
        return True


_under_way: list[Started] = []  # C++ does not keep what Python adds to a Work


def forget_all() -> None:
    """Nobody will wait for what is under way."""
    _under_way.clear()


@dataclass(frozen=True)
class Collective:
    """Where the arguments of one of torch's operations are.

    Attributes:
        tensors: places of its inputs and outputs, of which the larger side counts.
    """

    kind: str
    tensors: tuple[int, ...]
    group: int

    def start(self, observer: Observer, func: Any, args: Any) -> Started:
        """Say that one is sent, by the arguments of the operation."""
        sizes = [_bytes(args[place]) for place in self.tensors]
        group = ProcessGroup.unbox(args[self.group])
        return Started(observer.sent(self.kind, max(sizes), group, is_asynchronous=_is_asynchronous(func, args)))


def _is_asynchronous(func: Any, args: Any) -> bool:
    """Whether the caller is given a handle to wait for, by the flag of the operation; sending and receiving have none."""
    arguments = {argument.name: place for place, argument in enumerate(func._schema.arguments)}
    place = arguments.get("asyncOp", arguments.get("async_op"))
    if place is None:
        return False
    return bool(args[place]) if place < len(args) else bool(func._schema.arguments[place].default_value)


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_bytes, tensors)) if isinstance(tensors, list | tuple) else 0


COLLECTIVES = {
    "allreduce_": Collective("all-reduce", (0,), 1),
    "broadcast_": Collective("broadcast", (0,), 1),
    "reduce_": Collective("reduce", (0,), 1),
    "allgather_": Collective("all-gather", (0, 1), 2),
    "_allgather_base_": Collective("all-gather", (0, 1), 2),
    "reduce_scatter_": Collective("reduce-scatter", (0, 1), 2),
    "_reduce_scatter_base_": Collective("reduce-scatter", (0, 1), 2),
    "alltoall_base_": Collective("all-to-all", (0, 1), 2),
    "gather_": Collective("gather", (0, 1), 2),
    "scatter_": Collective("scatter", (0, 1), 2),
    "send": Collective("send", (0,), 1),
    "recv_": Collective("receive", (0,), 1),
    "allgather_into_tensor_coalesced_": Collective("all-gather", (0, 1), 2),
    "reduce_scatter_tensor_coalesced_": Collective("reduce-scatter", (0, 1), 2),
    "allreduce_coalesced_": Collective("all-reduce", (0,), 1),
}


def fake_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `init_process_group`: the world of the simulated rank."""

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        world = simulated[-1].world
        original("fake", rank=world.rank, world_size=world.size, store=FakeStore())

    return init_process_group


def new_group_of_fakes(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `new_group`: whatever backend is asked for, the one that says nothing."""

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(ranks, backend="fake")

    return new_group


def wait_for(handles: Iterable[Any]) -> None:
    """Wait for each."""
    for handle in handles:
        handle.wait()


def batch_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `batch_isend_irecv`, whose one handle comes from C++: one that waits for all that were sent and received."""

    def batch_isend_irecv(operations: list[Any]) -> list[Any]:
        before = set(_under_way)
        handles = original(operations)
        parts = [work for work in _under_way if work not in before]
        return handles if set(handles) <= set(parts) else [Started(lambda: wait_for(parts))]

    return batch_isend_irecv


def gathered(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Other ranks have the same to say; of what each has of its own, a mapping by name, they have nothing."""
    ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
    object_list[:] = [obj if rank == distributed.get_rank() else _object_of_rank(rank, obj) for rank in ranks]


def _object_of_rank(rank: int, mine: Any) -> Any:
    if isinstance(mine, dict):
        return {}
    if isinstance(mine, list) and mine and hasattr(mine[0], "replica_id"):
        from nemo_patches.fake_storage import shards_of_other  # which imports Megatron, as someone has who speaks of shards

        return shards_of_other(mine, rank)
    return mine


def gather(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    """As `gathered`, on one rank."""
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def scatter(output: list[Any], inputs: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    """This rank gets what it has for the first."""
    if inputs is not None:
        output[0] = inputs[0]
