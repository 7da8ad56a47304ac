"""What a save leaves for the next one of its kind: which tensors of the run lie in which file, and the checkpoint's description.

To find that out Megatron-core asks every module and optimizer for its state, checks it, and has all ranks exchange it, twice: as long as
writing takes on a small model, and several times what copying the state does.  It is the same at every save of a run: the tensors are the
same memory, which training writes over.  So it is found out once, and again where anything of it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.optimizer import ChainedOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from nemo_patches.extra_state import SUFFIX
from recipes.training.shard_files import ShardFile, storage_name

if TYPE_CHECKING:
    from recipes.training.checkpoint_io import PlannedSave

Memory = tuple[tuple[int, int, int, int], ...]  # of tensors: storage, first number there, how many, bytes of each


@dataclass(frozen=True)
class RunState:
    """Where the tensors of a run are on this rank.

    Attributes:
        memory: of all that training changes, as `memory_of` gives it.
        until_step: the storages of what the optimizer's step alone changes.
    """

    memory: Memory
    until_step: frozenset[int]

    @classmethod
    def of(cls, modules: Iterable[torch.nn.Module], optimizer: DistributedOptimizer | None) -> RunState:
        """As it is now."""
        chunks = list(modules)
        stepped = stepped_tensors(chunks, optimizer)
        memory = memory_of([*stepped, *buffers_of(chunks)])
        return cls(memory, frozenset(storage for storage, *_ in memory[: len(stepped)]))


@dataclass(frozen=True)
class KeptSave:
    """A save of a rank.

    Attributes:
        state: where the tensors of the run were.
        planned: files of the rank, of tensors that are these; once it is written, with the description of the checkpoint.
        optimizer: what the common state has of the optimizer besides that one's own: how its tensors are cut.
    """

    state: RunState
    planned: PlannedSave
    optimizer: dict[str, Any]


def stepped_tensors(modules: Iterable[torch.nn.Module], optimizer: DistributedOptimizer | None) -> list[Tensor]:
    """What the optimizer's step alone changes, of any shape: parameters, and the optimizer's parameters and state."""
    found: list[Tensor] = [parameter for module in modules for parameter in module.parameters()]
    if optimizer is not None:
        for group in optimizer.optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.optimizer.state.get(parameter, {}).values()
                found += [parameter, *(value for value in state if isinstance(value, Tensor))]
    return found


def buffers_of(modules: Iterable[torch.nn.Module]) -> list[Tensor]:
    """What else training changes, of any shape, also between two steps."""
    return [buffer for module in modules for _, buffer in module.named_buffers()]  # Megatron has something else called `buffers`


def memory_of(tensors: Iterable[Tensor]) -> Memory:
    """Where tensors of any shape lie; a storage keeps its name as long as some tensor, as those that are kept, lies in it."""
    with torch._C.DisableTorchFunction():  # type: ignore[no-untyped-call]  # which asks for the device at every call
        return tuple((storage_name(tensor), int(tensor.storage_offset()), tensor.numel(), tensor.element_size()) for tensor in tensors)


def can_be_kept(files: Sequence[ShardFile], state: RunState) -> bool:
    """Whether all that the files hold is memory of the run's tensors, or extra state, which says nothing."""
    storages = {storage for storage, *_ in state.memory}
    return all(
        storage_name(data) in storages if isinstance(data, Tensor) else SUFFIX in item.index.fqn
        for file in files
        for item, data in file.records
    )


def distributed_optimizer(optimizer: Any) -> DistributedOptimizer | None:
    """Megatron's distributed optimizer, where a run has just one."""
    found = getattr(optimizer, "mcore_optimizer", optimizer)
    if isinstance(found, ChainedOptimizer):
        if len(found.chained_optimizers) != 1:
            return None
        [found] = found.chained_optimizers
    return found if isinstance(found, DistributedOptimizer) and found.optimizer is not None else None


class Gathering:
    """Parameters that other replicas have updated, until this rank has gathered them.

    With overlapping communication the next forward pass does that, a group of parameters at a time, before the modules that need them.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        groups = [group for module in modules for group in (*module.bucket_groups, *module.expert_parallel_bucket_groups)]  # type: ignore[misc]
        # Without other replicas a group is copied onto itself.
        self._left = [group for group in groups if group.intra_distributed_optimizer_instance_size > 1 and not _is_gathered(group)]

    @property
    def storages(self) -> frozenset[int]:
        """Of what is to come."""
        return frozenset(storage_name(bucket.param_data) for group in self._left for bucket in group.buckets)

    def is_over(self) -> bool:
        """Whether all has come; to be asked after every forward pass, as a group forgets after the backward passes that it was gathered."""
        self._left = [group for group in self._left if not _is_gathered(group)]
        return not self._left

    def do_now(self) -> None:
        """Have what is left, as the next step would, which does not do it again; every rank takes part."""
        for group in self._left:
            group.start_param_sync(force_sync=True)
        self._left = []

    def do_before_change(self) -> None:
        """Have what is left, before a step changes it, so that what it changes is gathered anew; every rank takes part."""
        left = self._left
        self.do_now()
        for group in left:
            group.param_gather_dispatched = False


def _is_gathered(group: Any) -> bool:
    return group.param_gather_dispatched and group.param_gather_handle is None


def rest_of_optimizer(checkpoint: Mapping[str, Any], optimizer: DistributedOptimizer | None) -> dict[str, Any]:
    """What a checkpoint's common state has of the optimizer besides its own state and its tensors."""
    if optimizer is None:
        return {}
    own = optimizer.state_dict()
    [found] = checkpoint["optimizer"]
    return {key: value for key, value in found.items() if key != "param_state" and key not in own}
