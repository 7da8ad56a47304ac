"""Which rank of which world is simulated, who observes it, and which tensors are on its GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup
from torch._subclasses.fake_tensor import FakeTensor


@dataclass(frozen=True)
class FakeGpuKind:
    """What `torch.cuda.get_device_properties` says of each GPU."""

    name: str
    total_memory: int  # bytes
    capability: tuple[int, int]


@dataclass(frozen=True)
class World:
    """The ranks of a run, of which this process simulates one."""

    rank: int
    size: int
    devices_per_node: int
    gpu: FakeGpuKind

    @property
    def device(self) -> torch.device:
        """The GPU of the rank in its node."""
        return torch.device("cuda", self.rank % self.devices_per_node)


class Observer(Protocol):
    """Who is told what happens on the fake GPU."""

    peak: int  # most bytes that were allocated at any time
    now: int  # bytes that are allocated

    def allocated(self, tensor: Tensor, operation: str) -> None:
        """An operation has given a tensor, of any shape; its storage may be new or known."""

    def held_on_host(self, tensor: Tensor) -> None:
        """An operation has given a tensor, of any shape, on the host."""

    def waited(self, what: str) -> None:
        """The host waits for the GPU."""

    def sent(self, kind: str, num_bytes: int, group: ProcessGroup, *, is_asynchronous: bool) -> Callable[[], None]:
        """A collective operation has begun, with the bytes of the larger of its input and output on this rank.

        Returns:
            What to call where its result is waited for.
        """

    def computed(self, operations: int) -> None:
        """Products of matrices, attention among them, in floating-point operations."""

    def attended(self, kernel: str) -> None:
        """The kernel that a GPU would choose for an attention."""


@dataclass
class Simulated:
    """What the patches read: the rank that is being simulated."""

    world: World
    observer: Observer


class Nobody:
    """The observer outside of a rehearsal, for what libraries ask when they are imported."""

    peak = now = 0
    allocated = held_on_host = waited = computed = attended = staticmethod(lambda *args: None)
    sent = staticmethod(lambda *args, **options: lambda: None)


_A100 = FakeGpuKind("NVIDIA A100-SXM4-40GB", 42_297_786_368, (8, 0))
simulated = [Simulated(World(rank=0, size=1, devices_per_node=1, gpu=_A100), Nobody())]


def on_gpu(tensor: Any) -> bool:
    """Whether it is a fake tensor on the rank's GPU."""
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"
