"""What ranks drop out: the same in every run, and not what another stage, another part or another step does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Inputs
from tests.gloo import run_on_gloo


def test_stages_parts_and_steps_draw_different_numbers_and_a_step_always_the_same(tmp_path: Path) -> None:
    function = "tests.recipes.random_ranks:draws"
    ranks = run_on_gloo(function, world_size=4, directory=tmp_path, initialize=False, tensor_parallel_size=2, steps=[0, 1, 100, 0])
    assert sorted((rank["stage"], rank["rank"]) for rank in ranks) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    by_place = {(rank["stage"], rank["rank"]): rank for rank in ranks}
    for rank in ranks:
        for kind in ("whole", "part"):
            assert rank[kind][0] == rank[kind][3], "a step that is taken again"
    for stage in (0, 1):
        assert by_place[stage, 0]["whole"] == by_place[stage, 1]["whole"], "what tensor-parallel ranks have whole they drop out alike"
    drawn = [tuple(by_place[stage, 0]["whole"][step]) for stage in (0, 1) for step in (0, 1, 2)]
    drawn += [tuple(rank["part"][step]) for rank in ranks for step in (0, 1, 2)]
    assert len(set(drawn)) == len(drawn) == 18


@pytest.mark.long
def test_a_run_over_parts_of_sequences_goes_on_with_the_same_dropout(inputs: Inputs, tmp_path: Path) -> None:
    """Layers computed again, too; ended by a signal and called again, bit for bit."""
    overrides = [
        f"model.checkpoint={inputs.checkpoint}",
        f"data.train=[{inputs.data}]",
        "data.sequence_length=48",
        "model.hidden_dropout=0.2",
        "model.attention_dropout=0.2",
        "schedule.global_batch_size=8",
        "schedule.micro_batch_size=4",
        "schedule.max_steps=5",
        "schedule.warmup_steps=1",
        "run.checkpoint_every_steps=100",
        "run.log_every_steps=1",
        "parallel.sequence_parallel=true",
        "+recomputation={granularity: full, method: block, num_layers: 1}",
    ]

    def train(name: str, at_step: list[Any] | None = None) -> dict[str, Any]:
        first, second = run_on_gloo(
            "tests.recipes.training_ranks:train",
            world_size=2,
            directory=tmp_path / f"{name}.logs",
            timeout_seconds=600,
            initialize=False,
            tensor_parallel_size=2,
            output=str(tmp_path / name),
            overrides=overrides,
            at_step=at_step,
        )
        assert first["losses"] == second["losses"]
        return dict(first)

    whole = train("whole")
    begun, ended = train("parts", ["signal", 2, 1]), train("parts")
    assert begun["reason"] is not None and len(begun["losses"]) == 3
    assert begun["losses"] + ended["losses"] == whole["losses"]
    assert begun["gradient_norms"] + ended["gradient_norms"] == whole["gradient_norms"]
