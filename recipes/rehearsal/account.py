"""What one rank allocates, sends and waits for: the observer of a rehearsal, phase by phase."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_BLOCK = 512  # bytes; CUDA's allocator gives whole blocks
_LARGE = 1 << 20  # bytes from which a tensor's origin is written down
_SKIPPED = (
    "/torch/",
    "/contextlib.py",
    "/functools.py",
    "/nemo_patches/fake_devices/",
    "/recipes/rehearsal/",
    "/lightning/",
    "/weakref.py",
)
_BACKWARD = "backward"

COLLECTIVES = "buffers of collectives"

# What is being computed, by the innermost file of the call stack that says it.
_KINDS = (
    ("norm", "norms"),
    ("bias_dropout", "dropout and residual"),
    ("rope_utils", "attention"),
    ("rotary", "attention"),
    ("attention", "attention"),
    ("mlp.py", "feed-forward"),
    ("bias_swiglu", "feed-forward"),
    ("cross_entropy", "logits"),
    ("language_module", "logits"),
    ("second_head", "logits"),
    ("embedding", "embedding"),
    ("p2p_communication", COLLECTIVES),
    ("mappings", COLLECTIVES),
    ("transformer_layer", "dropout and residual"),
    ("transformer_block", "dropout and residual"),
    ("gpt_model", "logits"),  # what it computes itself is the output layer
)


@dataclass(frozen=True)
class Block:
    """One storage on the GPU.

    Attributes:
        kind: what it is for.
        place: line of the code that allocated it, empty for small ones.
    """

    num_bytes: int
    kind: str
    place: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Peak:
    """The fullest moment of a phase, and what was there then."""

    num_bytes: int
    blocks: tuple[Block, ...]

    def by_kind(self) -> dict[str, int]:
        """Bytes of each kind, the most first."""
        found: Counter[str] = Counter()
        for block in self.blocks:
            found[block.kind] += block.num_bytes
        return dict(found.most_common())

    def largest(self, count: int) -> list[tuple[int, int, Block]]:
        """Bytes and number of the blocks of one place, the most bytes first, with one of them."""
        groups: dict[tuple[str, str, tuple[int, ...]], list[Block]] = {}
        for block in self.blocks:
            if block.place:
                groups.setdefault((block.place, block.kind, block.shape), []).append(block)
        sums = [(sum(block.num_bytes for block in group), len(group), group[0]) for group in groups.values()]
        return sorted(sums, key=lambda item: -item[0])[:count]


@dataclass
class Traffic:
    """Bytes and calls of one collective of one group.

    Attributes:
        beside: bytes of the calls between whose beginning and whose wait matrices are multiplied, so that both can run at once.
        operations: of those products, in floating point; one product may be beside several calls.
    """

    num_bytes: int = 0
    calls: int = 0
    beside: int = 0
    operations: int = 0


@dataclass
class Account:
    """The observer: it follows every storage from its first tensor to its end.

    Attributes:
        now, peak: bytes that are allocated, and the most that ever were.
        peaks: the fullest moment of each phase.
        traffic: of each phase: (group, kind, whether the caller continues meanwhile) -> bytes.
        operations: in floating point, of all products of matrices so far.
        waits: of each phase: place -> how often the host waited there.
        kernels: of attention, with calls.
        after_first_step: the most bytes that ever were when the first step ended, what `torch.cuda.max_memory_allocated` says then.
        host_now, host_peaks: bytes of tensors on the host, and the most of each phase.
    """

    now: int = 0
    peak: int = 0
    after_first_step: int = 0
    peaks: dict[str, Peak] = field(default_factory=dict)
    traffic: dict[str, dict[tuple[str, str, bool], Traffic]] = field(default_factory=dict)
    operations: int = 0
    waits: dict[str, Counter[str]] = field(default_factory=dict)
    kernels: dict[str, Counter[str]] = field(default_factory=dict)
    host_now: int = 0
    host_peaks: dict[str, int] = field(default_factory=dict)
    _phase: str = "build"
    _live: dict[int, Block] = field(default_factory=dict)
    _highest: dict[str, int] = field(default_factory=dict)
    _on_host: set[int] = field(default_factory=set)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens within belongs to a phase."""
        before, self._phase = self._phase, name
        self._look(name)  # a phase may allocate nothing of its own
        try:
            yield
        finally:
            self._phase = before

    def enter(self, name: str) -> None:
        """What happens from now on belongs to a phase."""
        self._phase = name

    def call(self, tensors: Iterable[Tensor], kind: str) -> None:
        """Say what the storages of tensors, of any shape, are for, and were in the phases before."""
        renamed: dict[int, Block] = {}  # those that are in a peak live on, so that their ids stay theirs
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if (block := self._live.get(key)) is not None:
                renamed[id(block)] = self._live[key] = replace(block, kind=kind)
        for phase, peak in self.peaks.items():
            self.peaks[phase] = Peak(peak.num_bytes, tuple(renamed.get(id(block), block) for block in peak.blocks))

    # -- what the fake GPU tells ------------------------------------------------------------------------------------------

    def allocated(self, tensor: Tensor, operation: str) -> None:
        """See `nemo_patches.fake_devices.world.Observer.allocated`."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // _BLOCK) * _BLOCK
        known = self._live.get(key)
        if known is not None and known.num_bytes == size:
            return
        self.now += size - (known.num_bytes if known else 0)
        self._live[key] = self._block(tensor, size, operation)
        if known is None:
            weakref.finalize(storage, self._free, key)
        self.peak = max(self.peak, self.now)
        phase = self._phase
        if phase == "forward" and torch._C._current_graph_task_id() != -1:
            phase = _BACKWARD
        self._look(phase)

    def _look(self, phase: str) -> None:
        """Keep what is allocated, if it is more than the phase had so far."""
        if self.now > self._highest.get(phase, -1):
            self._highest[phase] = self.now
            live = self._live.copy()  # at once: what is made for a loop may start the collector, which ends storages in cycles
            self.peaks[phase] = Peak(self.now, tuple(live.values()))

    def held_on_host(self, tensor: Tensor) -> None:
        """See `nemo_patches.fake_devices.world.Observer.held_on_host`."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._on_host:
            return
        self._on_host.add(key)
        self.host_now += size
        weakref.finalize(storage, self._leave_host, key, size)
        self.host_peaks[self._phase] = max(self.host_peaks.get(self._phase, 0), self.host_now)

    def _leave_host(self, key: int, size: int) -> None:
        self._on_host.discard(key)
        self.host_now -= size

    def _free(self, key: int) -> None:
        self.now -= self._live.pop(key).num_bytes

    def waited(self, what: str) -> None:
        """See `nemo_patches.fake_devices.Observer`."""
        self.waits.setdefault(self._phase, Counter())[f"{_place(sys._getframe(1))[0]}: {what}"] += 1

    def sent(self, kind: str, num_bytes: int, group: Any, *, is_asynchronous: bool) -> Callable[[], None]:
        """See `nemo_patches.fake_devices.Observer`; a group of one rank sends nothing."""
        if group.size() == 1:
            return lambda: None
        name = group_name(group)
        found = self.traffic.setdefault(self._phase, {}).setdefault((name, kind, is_asynchronous), Traffic())
        found.num_bytes += num_bytes
        found.calls += 1
        return partial(self._awaited, found, num_bytes, self.operations)

    def _awaited(self, traffic: Traffic, num_bytes: int, operations_before: int) -> None:
        if meanwhile := self.operations - operations_before:
            traffic.beside += num_bytes
            traffic.operations += meanwhile

    def computed(self, operations: int) -> None:
        """See `nemo_patches.fake_devices.Observer`."""
        self.operations += operations

    def attended(self, kernel: str) -> None:
        """See `nemo_patches.fake_devices.Observer`."""
        self.kernels.setdefault(self._phase, Counter())[kernel] += 1

    def _block(self, tensor: Tensor, size: int, operation: str) -> Block:
        if size < _LARGE:
            return Block(size, "small tensors", "", (), "")
        place, kind = _place(sys._getframe(2))
        if "_norm" in operation:
            kind = "norms"
        if torch._C._current_graph_task_id() != -1:
            kind = f"gradients of activations ({kind})"
        if self._phase in ("build", "load"):
            # What is not named otherwise at the end of the build: masters of parameters, and what parameters were made of.
            kind = "optimizer" if "optim" in place else "parameters"
        elif self._phase == "optimizer":
            kind = "optimizer"
        return Block(size, kind, f"{place} ({operation})", tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _place(frame: FrameType | None) -> tuple[str, str]:
    """The line that is at work, and what it computes."""
    place, kind = "", ""
    while frame is not None and not (place and kind):
        name = frame.f_code.co_filename
        if not any(part in name for part in _SKIPPED):
            if not place:
                place = f"{_short(name)}:{frame.f_lineno}"
            kind = next((kind for sign, kind in _KINDS if sign in name.rpartition("/")[2]), "")
        frame = frame.f_back
    return place or "autograd", kind or "other"


def _short(path: str) -> str:
    for root in ("/site-packages/", "/recipes/", "/nemo_patches/", "/conversion/"):
        _, found, rest = path.rpartition(root)
        if found:
            return rest if root == "/site-packages/" else f"{root.strip('/')}/{rest}"
    return path


def group_name(group: Any) -> str:
    """What a process group is called in reports: by the kind of parallelism that it is for, or whose ranks it has."""
    from megatron.core import parallel_state

    if group.group_name == torch.distributed.distributed_c10d._get_default_group().group_name:
        return "all ranks"  # which are one of the kinds where the others have one rank
    known: dict[str, Any] = {}
    if parallel_state.model_parallel_is_initialized():
        known = {
            "TP": parallel_state.get_tensor_model_parallel_group(),
            "PP": parallel_state.get_pipeline_model_parallel_group(),
            "CP": parallel_state.get_context_parallel_group(),
            "DP": parallel_state.get_data_parallel_group(with_context_parallel=True),
            "DP of experts": parallel_state.get_expert_data_parallel_group(),
        }
    ranks = _ranks_of(group)
    for name, other in known.items():
        if other.group_name == group.group_name:
            return name
    for name, other in known.items():
        if _ranks_of(other) == ranks:
            return name
    return "all ranks" if len(ranks) == torch.distributed.get_world_size() else f"{len(ranks)} ranks"


def _ranks_of(group: Any) -> tuple[int, ...]:
    known = torch.distributed.distributed_c10d._world.pg_group_ranks
    return next(tuple(sorted(ranks)) for other, ranks in known.items() if getattr(other, "group_name", None) == group.group_name)


def total_traffic(account: Account, phases: Iterable[str]) -> Mapping[tuple[str, str, bool], Traffic]:
    """The traffic of several phases together."""
    total: dict[tuple[str, str, bool], Traffic] = {}
    for phase in phases:
        for key, traffic in account.traffic.get(phase, {}).items():
            found = total.setdefault(key, Traffic())
            for name in ("num_bytes", "calls", "beside", "operations"):
                setattr(found, name, getattr(found, name) + getattr(traffic, name))
    return total
