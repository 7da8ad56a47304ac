"""Runs of the tiny model on two processes, watched from inside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import Inputs
from tests.gloo import run_on_gloo

STEPS, SEQUENCE_LENGTH, BATCH = 6, 48, 8
TIMEOUT_SECONDS = 300
# What depends on the clock and the machine.
TIMES = {"tokens_per_second", "seconds_per_step", "memory_gib", "tflops_per_device", "mfu"}


class Runs:
    """Starts runs of the tiny model on two processes and gives back what rank 0 saw."""

    ranks = "tests.recipes.training_ranks:train"

    def __init__(self, inputs: Inputs, directory: Path) -> None:
        self.inputs, self.directory = inputs, directory

    def settings(self, *overrides: str) -> list[str]:
        return [
            f"model.checkpoint={self.inputs.checkpoint}",
            f"data.train=[{self.inputs.data}]",
            f"data.validation={{sl:{self.inputs.held_out},en:{self.inputs.data}}}",
            f"data.sequence_length={SEQUENCE_LENGTH}",
            f"schedule.global_batch_size={BATCH}",
            "schedule.micro_batch_size=2",
            f"schedule.max_steps={STEPS}",
            "schedule.warmup_steps=2",
            "schedule.constant_steps=2",
            "run.checkpoint_every_steps=3",
            "run.validate_every_steps=3",
            "run.validation_batches=2",
            "run.log_every_steps=1",
            *overrides,
        ]

    def train(self, name: str, *overrides: str, **options: Any) -> dict[str, Any]:
        """What rank 0 saw of a run; options as `train_ranks`."""
        return self.train_ranks(name, *overrides, **options)[0]

    def train_ranks(
        self,
        name: str,
        *overrides: str,
        tensor_parallel_size: int = 2,
        num_ranks: int = 2,
        at_step: Sequence[Any] | None = None,
        after: str | None = None,
        transformer_engine: str = "",
    ) -> list[dict[str, Any]]:
        """Train to the end, or go on in a copy of another run's directory; perhaps with a stand-in for TransformerEngine."""
        if after is not None:
            shutil.copytree(self.directory / after, self.directory / name)
        return run_on_gloo(
            self.ranks,
            world_size=num_ranks,
            directory=self.directory / f"{name}.logs",
            timeout_seconds=TIMEOUT_SECONDS,
            initialize=False,
            transformer_engine=transformer_engine,
            tensor_parallel_size=tensor_parallel_size,
            output=str(self.directory / name),
            overrides=self.settings(*overrides),
            at_step=at_step,
        )

    def records(self, name: str) -> list[dict[str, Any]]:
        lines = (self.directory / name / "metrics.jsonl").read_text().splitlines()
        return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]

    def checkpoints(self, name: str) -> list[str]:
        return sorted(path.name for path in (self.directory / name / "checkpoints").iterdir())
