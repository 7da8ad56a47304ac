"""Tells the watchdog of a rank that steps go on."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

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
