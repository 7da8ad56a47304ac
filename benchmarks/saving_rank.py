"""One rank of a training that saves, started by `benchmarks.saving`; rank 0 writes when each step began and ended for all of them.

    python -m benchmarks.saving_rank {ours,beside,none,nemo} INPUTS OUTPUT RANKS [CHECKPOINT]

With a checkpoint it is one that goes on from there and ends before its first step: rank 0 writes how long it took to load, for the last of them.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

STEPS, EVERY = 40, 10  # the last save is not timed: it is also the end of the run
CONTENDERS = ("ours", "beside", "none", "nemo")


def overrides(inputs: Path, *, ranks: int, contender: str) -> list[str]:
    """What makes the demo's recipe the benchmark's: a step of some tenths of a second, so that a save beside the training has its time."""
    return [
        f"model.checkpoint={inputs / 'nemo'}",
        f"data.train=[{inputs / 'data'}]",
        "data.sequence_length=128",
        f"parallel.devices_per_node={ranks}",
        f"parallel.tensor_parallel_size={min(ranks, 2)}",
        "schedule.micro_batch_size=2",
        f"schedule.global_batch_size={2 * ranks}",
        f"schedule.max_steps={STEPS}",
        f"run.checkpoint_every_steps={STEPS if contender == 'none' else EVERY}",
        f"run.asynchronous_save={str(contender in ('beside', 'none')).lower()}",
        # What is logged gathers the parameters once more, in a step that saves too: that time is no save's.
        f"run.log_every_steps={STEPS}",
    ]


def main(contender: str, inputs: Path, output: Path, ranks: int, checkpoint: Path | None = None) -> None:
    """Train with one of the ways to save, or load what it has saved."""
    from recipes.rules.compose import compose_recipe
    from recipes.rules.inputs import read_inputs
    from recipes.runs.launch import leased
    from recipes.runs.stopping import StopSignals
    from recipes.runs.watchdog import watching
    from recipes.training.assembly import make_callbacks
    from recipes.training.engine import make_data, make_model, make_trainer

    rank = int(os.environ["RANK"])
    recipe = compose_recipe("demo_adapt", overrides(inputs, ranks=ranks, contender=contender))
    found = read_inputs(recipe)
    from lightning.pytorch.callbacks import Callback
    from torch import distributed

    class Stops(Callback):
        """When a load begins and what it loads is in place, and when steps begin and end, on the rank that is last."""

        def __init__(self) -> None:
            self.begun: list[float] = []
            self.ended: list[float] = []
            self.loads: list[float] = []

        def begins_to_load(self, load: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            distributed.barrier()
            self.loads.append(time.monotonic())
            return load(*arguments, **options)

        def on_train_start(self, trainer: Any, *arguments: Any) -> None:
            if self.loads:
                distributed.barrier()
                self.loads.append(time.monotonic())
                trainer.should_stop = True

        def on_train_batch_start(self, *arguments: Any) -> None:
            distributed.barrier()
            self.begun.append(time.monotonic())

        def on_train_batch_end(self, *arguments: Any) -> None:
            distributed.barrier()
            self.ended.append(time.monotonic())

    run_dir = output / "run"
    with leased(run_dir) as fence, watching(recipe.run, rank=rank) as watchdog:
        callbacks = make_callbacks(recipe, found, run_dir=run_dir, signals=StopSignals(()), fence=fence, watchdog=watchdog)
        trainer: Any = make_trainer(recipe, callbacks, run_dir=run_dir, start_from_weights=checkpoint is None)
        if contender == "nemo":
            _save_as_nemo_does(trainer, run_dir / "checkpoints")
        stops = Stops()
        trainer.callbacks.insert(0, stops)
        if checkpoint is not None:
            trainer.strategy.load_checkpoint = partial(stops.begins_to_load, trainer.strategy.load_checkpoint)
        model, data = make_model(recipe, found, callbacks.nonfinite), make_data(recipe, found, index_dir=run_dir / "index")
        trainer.fit(model, data, ckpt_path=None if checkpoint is None else str(checkpoint))
    peaks: list[float] = [0.0] * ranks
    distributed.all_gather_object(peaks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    if rank == 0:
        told = {"begun": stops.begun, "ended": stops.ended, "loads": stops.loads, "peak_gib": max(peaks)}
        (output / "seconds.json").write_text(json.dumps(told))


def _save_as_nemo_does(trainer: Any, directory: Path) -> None:
    """NeMo's own callback, files and form of the optimizer's state in place of ours; no patch."""
    from nemo import lightning as nl
    from nemo.lightning.callback_group import CallbackGroup
    from nemo.lightning.pytorch.callbacks import ModelCheckpoint
    from nemo.utils.app_state import AppState

    from recipes.training.checkpoints import Checkpoints
    from recipes.training.engine import RecipeStrategy
    from recipes.training.stopping import Stopping

    AppState().log_dir = directory.parent  # as NeMo's logger does, which no run of ours has
    RecipeStrategy.sharded_state_dict_metadata = nl.MegatronStrategy.sharded_state_dict_metadata  # type: ignore[method-assign]
    RecipeStrategy.save_checkpoint = nl.MegatronStrategy.save_checkpoint  # type: ignore[method-assign]
    CallbackGroup.get_instance().callbacks.clear()  # telemetry, which asks for settings
    trainer.strategy._checkpoint_io = None
    callback = ModelCheckpoint(
        dirpath=str(directory),
        monitor=None,
        save_last=False,
        save_top_k=-1,
        every_n_train_steps=EVERY,
        always_save_context=False,
        save_context_on_train_end=False,
        filename="{step}",
    )
    trainer.callbacks = [*(other for other in trainer.callbacks if not isinstance(other, Checkpoints | Stopping)), callback]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), *map(Path, sys.argv[5:]))
