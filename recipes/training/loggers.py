"""Where the numbers of a run go: `metrics.jsonl`, TensorBoard, and Weights & Biases where it is installed and asked for.

Files are forgotten from the step on at which a run is resumed: else curves have points twice.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

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


def forget_points(directory: Path, *, last_step: int) -> None:
    """Remove what parts of a run that have ended wrote about later steps; what a crash cut off goes too."""
    for path in sorted(directory.glob("events.out.tfevents.*")):
        kept = [raw for raw in RawEventFileLoader(str(path)).Load() if _stays(Event.FromString(raw), last_step)]
        partial = directory / f".{os.getpid()}.partial"
        writer = RecordWriter(partial.open("wb"))
        for raw in kept:
            writer.write(raw)
        writer.close()
        partial.replace(path)


def _stays(event: Event, last_step: int) -> bool:
    return event.step <= last_step or not event.HasField("summary")


class MetricsFile:
    """Appends records, each with its `step`.

    Args:
        may_write: whether the run's directory is still this process's, see `common.lease`.
    """

    def __init__(self, path: Path, *, may_write: Callable[[], bool]) -> None:
        self._path, self._may_write = path, may_write

    def append(self, record: Mapping[str, Any]) -> bool:
        """Write a record, unless somebody else has taken the run over; whether it was written."""
        if not self._may_write():
            return False
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
        return True

    def records(self, *, last_step: int) -> list[dict[str, Any]]:
        """What was written up to a step."""
        return [json.loads(line) for line in self._lines(last_step)]

    def forget(self, *, last_step: int) -> None:
        """Remove what an interrupted run wrote after the checkpoint from which it is resumed."""
        if not self._path.exists():
            return
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(f"{line}\n" for line in self._lines(last_step)), encoding="utf-8")
        partial.replace(self._path)

    def _lines(self, last_step: int) -> list[str]:
        lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n") if self._path.exists() else []
        return [line for line in lines if _step_of(line) <= last_step]


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return sys.maxsize  # a line that was cut off by a crash
