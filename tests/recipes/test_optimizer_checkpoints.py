"""What a checkpoint costs of memory: each rank saves its own part of the optimizer's state."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Inputs
from tests.recipes.watched_runs import Runs


def test_no_rank_gathers_the_optimizer_and_its_parts_resume_at_every_layout(inputs: Inputs, tmp_path: Path) -> None:
    """Of 3 numbers per parameter that gathering makes on each rank, none; saved by two replicas, a run goes on over a tensor or a pipeline."""
    runs = Runs(inputs, tmp_path)
    settings = ("schedule.max_steps=4", "schedule.constant_steps=0", "run.checkpoint_every_steps=2", "run.validate_every_steps=null")
    whole = runs.train("whole", *settings, tensor_parallel_size=1, at_step=["copies", 2])
    assert whole["copies"] < 0.01
    cut = runs.train("cut", *settings, tensor_parallel_size=1, at_step=["file", 1, str(tmp_path / "cut/exit")])
    assert cut["reason"] is not None
    for name, size, overrides in (("tensor", 2, ()), ("pipeline", 1, ("parallel.pipeline_parallel_size=2",)), ("again", 1, ())):
        resumed = runs.train(name, *settings, *overrides, tensor_parallel_size=size, after="cut")
        assert resumed["losses"] == pytest.approx(whole["losses"][2:], abs=0 if name == "again" else 1e-5), name
