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
class KeptSave:
    """A save of a rank.

    Attributes:
        memory: of all tensors that training changes, as `memory_of` gives it.
        planned: files of the rank, of tensors that are these; once it is written, with the description of the checkpoint.
        optimizer: what the common state has of the optimizer besides that one's own: how its tensors are cut.
    """

    memory: Memory
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


def can_be_kept(files: Sequence[ShardFile], tensors: Sequence[Tensor]) -> bool:
    """Whether all that the files hold is memory of these tensors (of any shape), or extra state, which says nothing."""
    storages = set(map(storage_name, tensors))
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


def rest_of_optimizer(checkpoint: Mapping[str, Any], optimizer: DistributedOptimizer | None) -> dict[str, Any]:
    """What a checkpoint's common state has of the optimizer besides its own state and its tensors."""
    if optimizer is None:
        return {}
    own = optimizer.state_dict()
    [found] = checkpoint["optimizer"]
    return {key: value for key, value in found.items() if key != "param_state" and key not in own}
