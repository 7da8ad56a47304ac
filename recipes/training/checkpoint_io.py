"""Reading and writing a run's checkpoints: NeMo's own, for runs with and without TransformerEngine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from nemo.lightning.io.pl import MegatronCheckpointIO
from nemo.utils.callbacks.dist_ckpt_io import AsyncFinalizableCheckpointIO

from conversion.checkpoints.nemo_checkpoint import extra_states
from nemo_patches.extra_state import with_no_extra_state, without_extra_state


class CheckpointIO(MegatronCheckpointIO):  # type: ignore[misc]
    """NeMo's, for which it makes no difference whether TransformerEngine is there at a save, a load, both or neither."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> Any:
        """See NeMo's class; what a stock NeMo with TransformerEngine asks for is there, as the converter writes it."""
        model = checkpoint["sharded_state_dict"]
        return super().save_checkpoint({**checkpoint, "sharded_state_dict": {**model, **empty_extra_states(model)}}, path, storage_options)

    def load_checkpoint(self, path: Any, sharded_state_dict: Any = None, *arguments: Any, **options: Any) -> dict[str, Any]:
        """See NeMo's class."""
        model = sharded_state_dict["state_dict"]
        wanted = {**sharded_state_dict, "state_dict": without_extra_state(model)}
        loaded: dict[str, Any] = super().load_checkpoint(path, wanted, *arguments, **options)
        return {**loaded, "state_dict": with_no_extra_state(loaded["state_dict"], model)}


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


def make_checkpoint_io(*, asynchronous: bool) -> CheckpointIO | AsyncFinalizableCheckpointIO:
    """What a strategy takes as its `checkpoint_io`; saves beside the training where that is asked for."""
    made = CheckpointIO(async_save=asynchronous, parallel_load=True)  # each rank reads a part and passes it on, as NeMo's strategy does
    return AsyncFinalizableCheckpointIO(made) if asynchronous else made
