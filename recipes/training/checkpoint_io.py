"""Reading and writing a run's checkpoints: NeMo's own, for runs with and without TransformerEngine, written by threads of the ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync, _split_by_size_and_type
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_finalize, save_state_dict_async_plan
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from megatron.core.dist_checkpointing.utils import extract_sharded_base
from nemo.lightning.io.pl import MegatronCheckpointIO, ckpt_to_weights_subdir
from nemo.utils.callbacks.dist_ckpt_io import AsyncFinalizableCheckpointIO
from torch import distributed
from torch.distributed.checkpoint.api import CheckpointException, _wrap_exception
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX
from torch.distributed.checkpoint.planner import WriteItemType

from common.background import Background
from conversion.checkpoints.nemo_checkpoint import extra_states
from conversion.formats.loading_safety import read_as_data
from nemo_patches.extra_state import with_no_extra_state, without_extra_state
from recipes.training.shard_files import HostCopies, ShardFile, Writing, nothing, on_host, write_file

_BACKEND = ("torch_dist", 1)  # Megatron's name of the format, and its version


class CheckpointIO(MegatronCheckpointIO):  # type: ignore[misc]
    """NeMo's, for which it makes no difference whether TransformerEngine is there at a save, a load, both or neither.

    Attributes:
        write: writes a file; a rehearsal has another one.
        saved: what the newest save of a rank was found to be.
        copies: that asynchronous saves write.
        until_step: storages that only the optimizer's step changes, before which `copies.wait` is called.
        gathered_later: those of them that do not have their values yet, when `save_checkpoint` or `save_again` is called.
        told_digests: what each rank has written of a save by its number, for rank 0 when all have; a rehearsal has another one.
    """

    def __init__(self, *, asynchronous: bool) -> None:
        super().__init__(async_save=asynchronous, parallel_load=True)  # each rank reads a part and passes it on, as NeMo's strategy does
        self.write = write_file
        self.saved: PlannedSave | None = None
        self.until_step: frozenset[int] = frozenset()
        self.gathered_later: frozenset[int] = frozenset()
        self.told_digests = _reported_digests
        self.number = 0  # of the newest save, which is the same on all ranks
        self._writing = Writing(Path(), (), self.write)
        self.copies = HostCopies()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> Any:
        """See NeMo's class; what a stock NeMo with TransformerEngine asks for is there, as the converter writes it."""
        model = checkpoint["sharded_state_dict"]
        return super().save_checkpoint({**checkpoint, "sharded_state_dict": {**model, **empty_extra_states(model)}}, path, storage_options)

    def save_again(self, common: dict[str, Any], planned: PlannedSave, path: Any) -> AsyncRequest | None:
        """Save what an earlier save has planned and written; returns what is to be done beside the training, if that is how it is written.

        Args:
            common: what belongs to no tensor, as it is now; asked of rank 0 alone.
        """
        weights = Path(ckpt_to_weights_subdir(path, is_saving=True))
        describe = nothing
        if distributed.get_rank() == 0:
            plain = extract_sharded_base(common)[1]  # plain dictionaries, as Megatron makes them
            # What is written beside the training is as it is now.
            describe = partial(_describe, weights, deepcopy(plain) if self.async_save else plain, planned.description)
        writing = self.writing_of(weights, planned.files, first=partial(_make_directory, weights, describe))
        request = AsyncRequest(writing, (), [partial(_require_same_places, writing, planned.writing)])
        if self.async_save:
            return request
        request.execute_sync()
        return None

    def writing_of(self, weights: Path, files: Sequence[ShardFile], *, first: Callable[[], None] = nothing) -> Writing:
        """The work that writes files: of a copy, if training continues meanwhile.

        Args:
            first: what it does before.
        """
        if self.async_save:
            copies = self.copies.take(files, until_step=self.until_step, gathered_later=self.gathered_later)
            self.number += 1
            before, behind = partial(_in_turn, self.copies.wait, first), partial(self._tell_digests, self.number)
            self._writing = Writing(weights, copies, self.write, before=before, behind=behind)
        else:
            self._writing = Writing(weights, on_host(files), self.write, before=first)
        return self._writing

    @property
    def error(self) -> BaseException | None:
        """What went wrong in the newest save of this rank, when that has ended."""
        return self._writing.error

    def _tell_digests(self, number: int) -> None:
        _store().set(_key(number, distributed.get_rank()), json.dumps(self._writing.digests))

    def digests_of_all_ranks(self) -> dict[str, str]:
        """Digest of each file of the newest save, as the ranks that wrote them know them; every rank calls this when it has written.

        Raises:
            CheckpointException: on every rank, if one could not write.
        """
        failed = None if self._writing.error is None else _wrap_exception(self._writing.error)
        found: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(found, (self._writing.digests, failed))
        failures = {rank: failed for rank, (_, failed) in enumerate(found) if failed is not None}
        if failures:
            raise CheckpointException("write", failures)
        return {name: digest for digests, _ in found for name, digest in digests.items()}

    def load_checkpoint(self, path: Any, sharded_state_dict: Any = None, *arguments: Any, **options: Any) -> dict[str, Any]:
        """See NeMo's class."""
        model = sharded_state_dict["state_dict"]
        read_as_data()
        expected = {**sharded_state_dict, "state_dict": without_extra_state(model)}
        loaded: dict[str, Any] = super().load_checkpoint(path, expected, *arguments, **options)
        return {**loaded, "state_dict": with_no_extra_state(loaded["state_dict"], model)}

    def _determine_dist_ckpt_save_strategy(self) -> FullyParallelSaveStrategyWrapper:
        return FullyParallelSaveStrategyWrapper(_SaveStrategy(self))


def _make_directory(weights: Path, describe: Callable[[], None]) -> None:
    weights.mkdir(parents=True, exist_ok=True)
    describe()


def _describe(weights: Path, common: dict[str, Any], description: bytes) -> None:
    """Write what a checkpoint has besides the files of the ranks."""
    torch.save(common, weights / "common.pt")
    (weights / ".metadata").write_bytes(description)
    save_config(CheckpointingConfig(*_BACKEND), str(weights))


def _in_turn(*functions: Callable[[], None]) -> None:
    for function in functions:
        function()


def _reported_digests(number: int) -> dict[str, str]:
    """Digest of each file of a save, of which all ranks have told theirs."""
    found: dict[str, str] = {}
    for rank in range(distributed.get_world_size()):
        found |= json.loads(_store().get(_key(number, rank)))
        _store().delete_key(_key(number, rank))
    return found


def _key(number: int, rank: int) -> str:
    return f"scion/digests/{number}/{rank}"


def _store() -> distributed.Store:
    """Where the ranks have met: a thread tells there what another rank reads, while the training has the process groups for itself."""
    return distributed.distributed_c10d._get_default_store()


def _require_same_places(writing: Writing, described: Writing) -> None:
    if writing.error is None:
        found, expected = ([file.places for file in work.written] for work in (writing, described))
        assert found == expected, "the files are not those that the checkpoint describes"


class PlannedSave(FileSystemWriterAsync):  # type: ignore[misc]
    """Megatron's planning of what a rank writes, without the copies and processes of its writing.

    Attributes:
        files: of the rank.
        writing: their work.
        description: of the whole checkpoint, on rank 0 after the save; the bytes of `.metadata`.
    """

    def __init__(self, directory: Path, *, num_files: int, make: Callable[[Path, Sequence[ShardFile]], Writing]) -> None:
        super().__init__(directory, thread_count=num_files)
        self._directory, self._make = directory, make
        self.files: list[ShardFile] = []
        self.description = b""

    def prepare_write_data(self, plan: Any, planner: Any) -> None:
        """See Megatron's class."""
        parts = [part for part in _split_by_size_and_type(self.thread_count, plan.items) if part]
        for number, part in enumerate(parts):
            ordered = sorted(part, key=lambda item: item.type != WriteItemType.BYTE_IO)  # objects first, as Megatron has them
            records = tuple((item, planner.resolve_data(item)) for item in ordered)
            self.files.append(ShardFile(f"{plan.storage_data.prefix}{number}{DEFAULT_SUFFIX}", records))
        self.writing = self._make(Path(self._directory), self.files)

    def retrieve_write_results(self) -> Any:
        """See Megatron's class: where each record lies, or what went wrong."""
        if self.writing.error is not None:
            return _wrap_exception(self.writing.error)
        return [place for file in self.writing.written for place in file.places]

    def storage_meta(self) -> None:
        """Nothing: torch's would be the hidden name of the folder, and a number drawn for each save."""

    def finish(self, metadata: Any, results: Any) -> None:
        """See torch's class."""
        super().finish(metadata, results)
        self.description = (Path(self._directory) / ".metadata").read_bytes()


class _SaveStrategy(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Megatron's, with files that the rank writes itself."""

    def __init__(self, checkpoint_io: CheckpointIO) -> None:
        super().__init__(*_BACKEND)
        self._io = checkpoint_io

    def async_save(self, sharded_state_dict: Any, checkpoint_dir: Any) -> AsyncRequest:
        """See Megatron's class."""
        state, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        saved = PlannedSave(checkpoint_dir, num_files=self.thread_count, make=self._io.writing_of)
        planner = MCoreSavePlanner(dedup_replicated_tensors=not self.keep_only_main_replica, flatten_state_dict=False)
        planned, *_ = save_state_dict_async_plan(mcore_to_pyt_state_dict(state, False), saved, None, 0, planner=planner)
        self._io.saved = saved
        return AsyncRequest(saved.writing, (), [partial(save_state_dict_async_finalize, *planned)])


class CheckpointIOBeside(AsyncFinalizableCheckpointIO):  # type: ignore[misc]
    """NeMo's, whose saves are written by threads of the ranks while they train, one at a time.

    NeMo's and Megatron's own ask behind every step, in a meeting of the ranks, whether all have written, and meet again when they have.
    Here nobody meets: who calls `end` has found that out (`recipes.training.stopping` asks for it in the meeting that there is anyway).
    """

    def __init__(self, checkpoint_io: CheckpointIO) -> None:
        super().__init__(checkpoint_io)
        self.async_calls_queue = _ThreadQueue()

    def save_again(self, common: dict[str, Any], planned: PlannedSave, path: Any, finalize: Callable[[], None]) -> None:
        """Begin with what an earlier save has planned; `finalize` is called on all ranks at the end of a step behind it."""
        request = self.checkpoint_io.save_again(common, planned, path)
        request.add_finalize_fn(finalize)
        self.async_calls_queue.schedule_async_request(request)


class _ThreadQueue:
    """As much of Megatron's queue as NeMo's class asks for; the work is done by a thread in place of a forked process."""

    def __init__(self) -> None:
        self._pending: tuple[Background[None], AsyncRequest] | None = None

    @property
    def is_writing(self) -> bool:
        """Whether this rank is not done with a save."""
        return self._pending is not None and not self._pending[0].is_done

    def wait(self) -> None:
        """Until this rank has written what it has begun, or failed."""
        if self._pending is not None:
            self._pending[0].result()

    def schedule_async_request(self, request: AsyncRequest) -> int:
        """Begin; see Megatron's class."""
        assert self._pending is None, "one save at a time"
        self._pending = Background(request.async_fn), request
        return 0

    def get_num_unfinalized_calls(self) -> int:
        """See Megatron's class."""
        return 0 if self._pending is None else 1

    def maybe_finalize_async_calls(self, blocking: bool = False) -> list[int]:
        """End the save, if `blocking`; every rank calls that at the same time, when all have written.

        NeMo's callback asks behind every step without waiting, when nothing is known of the others.
        """
        if not blocking or self._pending is None:
            return []
        work, request = self._pending
        work.result()
        self._pending = None
        for finalize in request.finalize_fns:
            finalize()
        return [0]


def empty_extra_states(model: Mapping[str, Any]) -> dict[str, ShardedObject]:
    """An object without content for each extra state that some TransformerEngine has and no module of this rank's model.

    Args:
        model: what the rank saves of its model, by any name; layers are parts of one tensor.
    """
    there = {value.key for value in model.values() if isinstance(value, ShardedObject)}
    replica = (
        0,
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_data_parallel_rank(with_context_parallel=True),
    )
    found = {}
    for tensor in model.values():
        if not isinstance(tensor, ShardedTensor):
            continue
        shape, offset = ((tensor.global_shape[0],), (tensor.global_offset[0],)) if tensor.prepend_axis_num else ((1,), (0,))
        for key in extra_states([tensor.key]):
            if key not in there:
                state = ShardedObject(key, None, shape, offset, replica_id=replica)
                found[state.unique_key] = state
    return found


def make_checkpoint_io(*, asynchronous: bool) -> CheckpointIO | CheckpointIOBeside:
    """What a strategy takes as its `checkpoint_io`; saves beside the training where that is asked for."""
    made = CheckpointIO(asynchronous=asynchronous)
    return CheckpointIOBeside(made) if asynchronous else made
