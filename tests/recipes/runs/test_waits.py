"""Where the host waits for the device in a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Inputs
from tests.recipes.watched_runs import Runs

IN_A_STEP = {
    "nonfinite.py:check_step": 1,  # whether losses and gradients are finite
    "clip_grads.py:get_grad_norm_fp32": 1,
    "stopping.py:on_train_batch_end": 1,
}


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_a_step_waits_in_three_places_once_each(inputs: Inputs, tmp_path: Path, tensor_parallel_size: int) -> None:
    """Whatever the number of parameters, of parts of them, and of micro batches."""
    runs = Runs(inputs, tmp_path)
    settings = ("schedule.max_steps=3", "schedule.constant_steps=0", "run.log_every_steps=10", "schedule.micro_batch_size=1")
    found = runs.train("run", *settings, tensor_parallel_size=tensor_parallel_size, at_step=["waits", 1])
    assert found["waits"] == IN_A_STEP
