"""The memory of a run's first step beside what a rehearsal has counted, where the run's directory has one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from common.lease import Fence
from recipes.rehearsal.prediction import compare_first_step, record_first_step
from recipes.rules.schema import Recipe
from recipes.runs.launch import process_rank


class FirstStepMemory(Callback):
    """Writes a record for each rank that was rehearsed, and a line; ranks do not talk for it.

    Args:
        measure: the most GiB that this rank has used of its GPU; None on a CPU, whose memory was not rehearsed.
    """

    def __init__(self, run_dir: Path, recipe: Recipe, fence: Fence, *, measure: Callable[[], float] | None) -> None:
        self._run_dir, self._recipe, self._fence, self._measure = run_dir, recipe, fence, measure

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Compare behind the first step of the run; one that was resumed has the optimizer's state from the start."""
        if trainer.global_step != 1 or self._measure is None:
            return
        found = compare_first_step(self._run_dir, self._recipe, process_rank(), measured_gib=round(self._measure(), 3))
        if found is not None and self._fence.is_held:
            record_first_step(self._run_dir, found)
            print(found, file=sys.stderr, flush=True)
