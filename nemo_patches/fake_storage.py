"""Checkpoints that keep everything but the numbers: what a rehearsed rank saves is planned, copied to the host and described, not written.

Only one rank is simulated, so the other ranks' part of a checkpoint's description is missing: it is completed from what this rank knows, the whole
shape of each tensor of which it has a part, and the checks across ranks are left out.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingConfig, maybe_load_config, save_config
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.strategies.resharding import (
    is_nd_flattened_tensor,
    nd_flattened_tensor_reformulated_global_shape,
)
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from nemo_patches.core import Patch

NOWHERE = _StorageInfo("nothing is stored", 0, 1 << 44)  # room for any tensor, as the reader of indices asks for


def _read_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tensors are asked for and stay what they are, with what reading one takes of the host; objects are read where there is a file."""

    def read_data(self: FileSystemReader, plan: Any, planner: Any) -> Future[None]:
        described = self.read_metadata().state_dict_metadata
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, _object(self, item))
            else:
                target = planner.resolve_tensor(item).detach()
                _hold_chunk(target, _chunk_size(self, item, described) or target.numel())
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    return read_data


def _chunk_size(self: FileSystemReader, item: Any, described: Mapping[str, Any]) -> int | None:
    """Numbers in the chunk of the file that holds an item; None for what a rehearsal saved, which is described without its chunks."""
    if self.storage_data[item.storage_index].relative_path == NOWHERE.relative_path:
        return None
    chunks: list[ChunkStorageMetadata] = described[item.storage_index.fqn].chunks
    return next(chunk.sizes.numel() for chunk in chunks if chunk.offsets == item.storage_index.offset)


def _hold_chunk(target: torch.Tensor, size: int) -> None:
    """Take what reading takes of the host: the whole chunk as bytes, and then as a tensor."""
    read = torch.empty(size * target.element_size(), dtype=torch.uint8, device="cpu")
    unpickled = torch.empty(size, dtype=target.dtype, device="cpu")
    del read, unpickled


def _object(self: FileSystemReader, item: Any) -> io.BytesIO:
    place = self.storage_data[item.storage_index]
    path = Path(self.path) / place.relative_path
    if path.is_file():
        with path.open("rb") as stream:
            stream.seek(place.offset)
            return io.BytesIO(stream.read(place.length))
    empty = io.BytesIO()
    torch.save([None], empty)
    empty.seek(0)
    return empty


def _alone(original: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's planner asks no other rank."""

    def begin(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        original(self, group, False, coordinator_rank)
        self.rank = coordinator_rank

    return begin


def _describing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Complete the description of what was saved, so that a resume finds all that it asks for."""

    def save_checkpoint(self: Any, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> Any:
        shards = list(_shards(checkpoint))
        for shard in shards:
            if isinstance(shard, ShardedObject) and isinstance(shard.data, torch.Tensor):
                shard.data = None  # extra state, which is pickled; a tensor without values cannot be
        request = original(self, checkpoint, path, storage_options)
        weights = Path(path) / "weights"
        if request is None:
            _complete(weights, shards, checkpoint)
        return request

    return save_checkpoint


def shards_of_other(mine: list[Any], rank: int) -> list[Any]:
    """What another rank has of a checkpoint, by what this one has, without data.

    A replica of this rank's part of the model has the same tensors, and as large a part of the optimizer's state, which is its own.
    Of the other parts of the model it is enough to know that they are not this one's.  Objects are said by all ranks alike.
    """
    if not all(isinstance(shard, ShardedTensor) for shard in mine):
        return mine
    replicas = torch.distributed.get_process_group_ranks(parallel_state.get_data_parallel_group(with_context_parallel=True))
    if rank not in replicas:
        return []
    return [
        replace(shard, replica_id=(*shard.replica_id[:-1], replicas.index(rank)))
        if shard.flattened_range is None
        else replace(shard, key=f"{shard.key} of rank {rank}")
        for shard in mine
    ]


def _shards(checkpoint: dict[str, Any]) -> Iterator[ShardedTensor | ShardedObject]:
    whole = dict(checkpoint)
    for value in nested_values(whole):
        if isinstance(value, ShardedTensorFactory):
            yield from _shards({"built": value.build()})
        elif isinstance(value, ShardedTensor | ShardedObject):
            yield value


def _complete(weights: Path, shards: list[Any], checkpoint: dict[str, Any]) -> None:
    if maybe_load_config(str(weights)) is None:  # which the first rank writes, and the reader of the index asks for
        save_config(CheckpointingConfig("torch_dist", 1), str(weights))
    metadata = FileSystemReader(weights).read_metadata()
    for shard in shards:
        if isinstance(shard, ShardedTensor):
            shape = torch.Size(shard.global_shape)
            if is_nd_flattened_tensor(shard):  # a part of a parameter, as each rank saves of the optimizer's state
                metadata.mcore_data[shard.key] = {"nd_reformulated_orig_global_shape": tuple(shard.global_shape)}  # type: ignore[attr-defined]
                shape = torch.Size(nd_flattened_tensor_reformulated_global_shape(shard))
            index = MetadataIndex(shard.key, torch.Size([0] * len(shape)))
            metadata.state_dict_metadata[shard.key] = TensorStorageMetadata(
                TensorProperties(dtype=shard.dtype), shape, [ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)]
            )
        else:
            index = MetadataIndex(shard.unique_key)
            metadata.state_dict_metadata[shard.unique_key] = BytesStorageMetadata()
        metadata.storage_data[index] = NOWHERE
    with (weights / ".metadata").open("wb") as stream:
        pickle.dump(metadata, stream)


def _patch(target: str, package: str, digests: Mapping[str, str], wrap: Callable[..., Any]) -> Patch:
    return Patch(
        target=target,
        wrap=wrap,
        package=package,
        digests=digests,
        reason="A rehearsal has no other ranks, and no numbers that could be stored.",
        remove_when="Megatron-core can plan a checkpoint without writing it.",
    )


def _returning_none(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: None


def _returning_no_errors(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: []


def _common_by_any_rank(original: Callable[..., Any]) -> Callable[..., Any]:
    def save_common(self: Any, common_state_dict: Any, checkpoint_dir: Any) -> None:
        torch.save(common_state_dict, Path(checkpoint_dir) / "common.pt")

    return save_common


_CHECKPOINTING = "megatron.core.dist_checkpointing"
PATCHES = (
    _patch(
        f"{_CHECKPOINTING}.strategies.common:TorchCommonSaveStrategy.save_common",
        "megatron-core",
        {"0.15.3": "660d5822576d4d2b"},
        _common_by_any_rank,
    ),
    _patch(f"{_CHECKPOINTING}.validation:validate_sharding_integrity", "megatron-core", {"0.15.3": "5242039193befeed"}, _returning_none),
    _patch(
        f"{_CHECKPOINTING}.state_dict_utils:validate_sharding_integrity", "megatron-core", {"0.15.3": "5242039193befeed"}, _returning_none
    ),
    _patch(
        f"{_CHECKPOINTING}.strategies.fully_parallel:validate_sharding_integrity",
        "megatron-core",
        {"0.15.3": "5242039193befeed"},
        _returning_none,
    ),
    _patch("torch.distributed.checkpoint.filesystem:FileSystemReader.read_data", "torch", {}, _read_nothing),
    _patch("torch.distributed.checkpoint.utils:_DistWrapper.__init__", "torch", {}, _alone),
    _patch("torch.distributed.checkpoint.default_planner:_validate_global_plan", "torch", {}, _returning_no_errors),
    _patch("nemo.lightning.io.pl:MegatronCheckpointIO.save_checkpoint", "nemo-toolkit", {"2.7.3": "9bb5d854407b7659"}, _describing),
)
