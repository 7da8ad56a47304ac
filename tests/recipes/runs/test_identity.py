"""Which runs are of one recipe: those that differ in seed, places and layout alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.artifacts import Manifest
from recipes.rules.compose import compose_recipe
from recipes.runs.identity import run_facts

START = ("model.checkpoint=a", "data.train=[x]")


@pytest.mark.parametrize(
    "override, same",
    [
        ("seed=43", True),
        ("model.checkpoint=b", True),
        ("parallel.tensor_parallel_size=2", True),
        ("run.checkpoint_every_steps=7", True),
        ("schedule.learning_rate=0.5", False),
        ("procedure=lora", False),
        ("objective=clm", False),
    ],
)
def test_what_makes_another_recipe(override: str, same: bool, tmp_path: Path) -> None:
    facts = [
        run_facts(tmp_path / name, compose_recipe("low_resource/llama2", (*START, *more)), [Manifest("data_prep.to_megatron")])
        for name, more in (("a", ()), ("b", (override,)))
    ]
    assert (facts[0]["recipe"] == facts[1]["recipe"]) is same
    assert facts[0]["id"] != facts[1]["id"] and run_facts(tmp_path / "a", compose_recipe("demo_adapt", START), [])["id"] == facts[0]["id"]
