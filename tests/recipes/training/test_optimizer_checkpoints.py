"""What a checkpoint costs of memory: each rank saves its own part of the optimizer's state."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Inputs
from tests.recipes.watched_runs import Runs

SETTINGS = ("schedule.max_steps=4", "schedule.constant_steps=0", "run.checkpoint_every_steps=2", "run.validate_every_steps=null")


@pytest.fixture(scope="module")
def runs(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(inputs, tmp_path_factory.mktemp("optimizer"))


@pytest.fixture(scope="module")
def whole(runs: Runs) -> dict[str, Any]:
    return runs.train("whole", *SETTINGS, tensor_parallel_size=1, at_step=["copies", 2])


@pytest.fixture(scope="module")
def cut(runs: Runs) -> str:
    """Name of a run of two replicas that ended behind its second step."""
    seen = runs.train("cut", *SETTINGS, tensor_parallel_size=1, at_step=["file", 1, str(runs.directory / "cut/exit")])
    assert seen["reason"] is not None
    return "cut"


def test_no_rank_gathers_the_optimizer(whole: dict[str, Any]) -> None:
    """Of 3 numbers per parameter that gathering makes on each rank, none."""
    assert whole["copies"] < 0.01


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "overrides"),
    [
        ("tensor", 2, ()),
        ("pipeline", 1, ("parallel.pipeline_parallel_size=2",)),
        ("again", 1, ()),
    ],
)
def test_its_parts_resume_at_every_layout(
    runs: Runs, whole: dict[str, Any], cut: str, name: str, size: int, overrides: tuple[str, ...]
) -> None:
    """Saved by two replicas, a run goes on over a tensor or a pipeline, and as it was bit for bit."""
    resumed = runs.train(name, *SETTINGS, *overrides, tensor_parallel_size=size, after=cut)
    assert resumed["losses"] == pytest.approx(whole["losses"][2:], abs=0 if name == "again" else 1e-5)
