"""Where numbers go besides `metrics.jsonl`: TensorBoard, and Weights & Biases where it is installed and asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from recipes.runs.run_dir import TENSORBOARD_NAME, wandb_id


def make_loggers(run_dir: Path, *, name: str, wandb_project: str | None, settings: dict[str, Any]) -> list[Logger]:
    """The loggers of a run; what Weights & Biases gets stays in the directory of the run until somebody sends it.

    All parts of an interrupted run have one id there, which is made from the run's directory.
    """
    loggers: list[Logger] = [TensorBoardLogger(str(run_dir), name=TENSORBOARD_NAME, version="")]
    if wandb_project is not None:
        os.environ.setdefault("WANDB_SILENT", "true")
        loggers.append(
            WandbLogger(
                name=name,
                project=wandb_project,
                save_dir=str(run_dir),
                id=wandb_id(run_dir),
                offline=True,
                config=settings,
                log_model=False,
            )
        )
    return loggers


def finish(loggers: Iterable[Logger]) -> None:
    """Have everything written; Weights & Biases keeps some of it in a process of its own until then."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()
