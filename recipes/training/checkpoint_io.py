"""Reading and writing a run's checkpoints: NeMo's own, for runs with and without TransformerEngine."""

from __future__ import annotations

from typing import Any

from nemo.lightning.io.pl import MegatronCheckpointIO
from nemo.utils.callbacks.dist_ckpt_io import AsyncFinalizableCheckpointIO

from nemo_patches.extra_state import with_no_extra_state, without_extra_state


class CheckpointIO(MegatronCheckpointIO):  # type: ignore[misc]
    """NeMo's, which loads what a run with TransformerEngine has saved into one without it and the other way round."""

    def load_checkpoint(self, path: Any, sharded_state_dict: Any = None, *arguments: Any, **options: Any) -> dict[str, Any]:
        """See NeMo's class."""
        model = sharded_state_dict["state_dict"]
        wanted = {**sharded_state_dict, "state_dict": without_extra_state(model)}
        loaded: dict[str, Any] = super().load_checkpoint(path, wanted, *arguments, **options)
        return {**loaded, "state_dict": with_no_extra_state(loaded["state_dict"], model)}


def make_checkpoint_io(*, asynchronous: bool) -> CheckpointIO | AsyncFinalizableCheckpointIO:
    """What a strategy takes as its `checkpoint_io`; saves beside the training where that is asked for."""
    made = CheckpointIO(async_save=asynchronous, parallel_load=True)  # each rank reads a part and passes it on, as NeMo's strategy does
    return AsyncFinalizableCheckpointIO(made) if asynchronous else made
