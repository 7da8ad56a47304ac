"""What a rank says to others, and the others, who say nothing: torch's process group "fake"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as distributed
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup

from nemo_patches.fake_devices.world import Observer, played


@dataclass(frozen=True)
class Collective:
    """Where the arguments of one of torch's operations are.

    Attributes:
        tensors: places of its inputs and outputs, of which the larger side counts.
        asynchronous: place of the flag, where there is one.
    """

    kind: str
    tensors: tuple[int, ...]
    group: int
    asynchronous: int | None = None
    is_coalesced: bool = False  # several in one, which the fake group does not know

    def tell(self, observer: Observer, args: Any) -> None:
        """Say that one is sent, by the arguments of the operation."""
        sizes = [_bytes(args[place]) for place in self.tensors]
        flag = self.asynchronous
        observer.sent(
            self.kind,
            max(sizes),
            ProcessGroup.unbox(args[self.group]),
            is_asynchronous=flag is None or len(args) <= flag or bool(args[flag]),
        )


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_bytes, tensors)) if isinstance(tensors, list | tuple) else 0


COLLECTIVES = {
    "allreduce_": Collective("all-reduce", (0,), 1, 5),
    "broadcast_": Collective("broadcast", (0,), 1, 5),
    "reduce_": Collective("reduce", (0,), 1, 6),
    "allgather_": Collective("all-gather", (0, 1), 2, 4),
    "_allgather_base_": Collective("all-gather", (0, 1), 2, 3),
    "reduce_scatter_": Collective("reduce-scatter", (0, 1), 2, 5),
    "_reduce_scatter_base_": Collective("reduce-scatter", (0, 1), 2, 4),
    "alltoall_base_": Collective("all-to-all", (0, 1), 2, 6),
    "gather_": Collective("gather", (0, 1), 2, 5),
    "scatter_": Collective("scatter", (0, 1), 2, 5),
    "send": Collective("send", (0,), 1),
    "recv_": Collective("receive", (0,), 1),
    "allgather_into_tensor_coalesced_": Collective("all-gather", (0, 1), 2, 3, is_coalesced=True),
    "reduce_scatter_tensor_coalesced_": Collective("reduce-scatter", (0, 1), 2, 5, is_coalesced=True),
    "allreduce_coalesced_": Collective("all-reduce", (0,), 1, 5, is_coalesced=True),
}


def fake_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `init_process_group`: the world of the rank that is played."""

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        world = played[-1].world
        original("fake", rank=world.rank, world_size=world.size, store=FakeStore())

    return init_process_group


def new_group_of_fakes(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `new_group`: whatever backend is asked for, the one that says nothing."""

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(ranks, backend="fake")

    return new_group


def gathered(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Other ranks have the same to say; of what each has of its own, a mapping by name, they have nothing."""
    others = {} if isinstance(obj, dict) else obj
    object_list[:] = [others] * len(object_list)
    object_list[distributed.get_rank(group)] = obj


def gather(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    """As `gathered`, on one rank."""
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def scatter(output: list[Any], inputs: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    """This rank gets what it has for the first."""
    if inputs is not None:
        output[0] = inputs[0]
