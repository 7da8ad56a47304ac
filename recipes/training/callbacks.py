"""Small callbacks of a run: the watchdog's steps, the first step's memory, the learning rate of a resumed run, and its random state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import xxhash
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from common.lease import Fence
from recipes.rehearsal.prediction import compare_first_step, record_first_step
from recipes.rules.schema import Recipe
from recipes.runs.launch import process_rank
from recipes.runs.watchdog import Watchdog


class ProgressWatch(Callback):
    """The last callback of a step."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note the step."""
        self._watchdog.step_ended(trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What follows may wait for the newest save."""
        self._watchdog.ends()


class FirstStepMemory(Callback):
    """Writes a record for each rank that was rehearsed, and a line; ranks do not talk for it.

    Args:
        measure: the most GiB that this rank has used of its GPU; None on a CPU, whose memory was not rehearsed.
    """

    def __init__(self, run_dir: Path, recipe: Recipe, fence: Fence, *, measure: Callable[[], float] | None) -> None:
        self._run_dir, self._recipe, self._fence, self._measure = run_dir, recipe, fence, measure

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Compare after the first step of the run; one that was resumed has the optimizer's state from the start."""
        if trainer.global_step != 1 or self._measure is None:
            return
        found = compare_first_step(self._run_dir, self._recipe, process_rank(), measured_gib=round(self._measure(), 3))
        if found is not None and self._fence.is_held:
            record_first_step(self._run_dir, found)
            print(found, file=sys.stderr, flush=True)


class RateOfTheStep(Callback):
    """Computes the rate anew: a checkpoint brings that of its own run, which may have been planned shorter."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set it; later steps have it from the scheduler."""
        for config in trainer.lr_scheduler_configs:
            scheduler = config.scheduler
            for group, base, share in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):  # type: ignore[union-attr]
                group["lr"] = base * share(scheduler.last_epoch)  # type: ignore[union-attr]


class StepSeed(Callback):
    """Makes the random state a function of seed and step, so that a resumed run draws what an uninterrupted one would.

    NeMo saves no random state.  Megatron adds small numbers to the seed of tensor-parallel ranks (for dropout of sharded activations),
    so the seeds of steps, pipeline stages and pieces of samples lie far apart: otherwise a rank would drop out what another one does in another step.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed the validation before the first step: with sequence parallelism it asks for states that Megatron makes on GPUs alone."""
        self.on_train_batch_start(trainer, pl_module, batch=None, batch_idx=0)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Seed the step that begins."""
        stage, piece = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_context_parallel_rank()
        what = f"{self._seed} {trainer.global_step} {stage}" + (f" {piece}" if piece else "")
        seed = xxhash.xxh3_64_intdigest(what.encode()) % 2**31
        torch.default_generator.manual_seed(seed)  # torch.manual_seed writes down the call stack for every kind of absent device
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
