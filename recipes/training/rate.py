"""The learning rate of the step at which a run goes on."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback


class RateOfTheStep(Callback):
    """Computes the rate anew: a checkpoint brings that of its own run, which may have been planned shorter."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set it; later steps have it from the scheduler."""
        for config in trainer.lr_scheduler_configs:
            scheduler = config.scheduler
            for group, base, share in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):  # type: ignore[union-attr]
                group["lr"] = base * share(scheduler.last_epoch)  # type: ignore[union-attr]
