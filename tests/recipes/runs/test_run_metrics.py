"""What a run took, by files as it writes them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from common.artifacts import write_manifest
from recipes.planner.hardware import find_gpu
from recipes.rules.compose import compose_recipe
from recipes.runs.run_dir import record_recipe
from recipes.runs.run_metrics import cost_until


def make_run(run_dir: Path, *overrides: str, checkpoints: dict[int, int] | None = None) -> Path:
    """A run on two devices that logs every ten steps: 6 s a step, later 3; `checkpoints` are steps with other numbers of devices."""
    recipe = compose_recipe("ofa/mono", ["parallel.num_nodes=1", "parallel.devices_per_node=2", *overrides])
    record_recipe(run_dir, recipe)
    rows = [{"step": step, "loss": 5.0, "seconds_per_step": 6.0 if step <= 20 else 3.0} for step in (10, 20, 30, 40)]
    lines = [json.dumps(row) + "\n" for row in [*rows[:2], {"step": 20, "validation_masked_loss": 4.0}, *rows[2:]]]
    (run_dir / "metrics.jsonl").write_text("".join(lines) + '{"step": 50, "lo')
    for step, devices in (checkpoints or {}).items():
        path = run_dir / "checkpoints" / f"step_{step:07d}"
        path.mkdir(parents=True)
        arguments = asdict(recipe)
        arguments["parallel"] |= {"num_nodes": devices, "devices_per_node": 1}
        write_manifest(path, stage="recipes.train", facts={"step": step}, arguments=arguments, inputs={})
    return run_dir


def test_hours_to_a_step(tmp_path: Path) -> None:
    """Also to one between two lines of metrics."""
    run = make_run(tmp_path / "run")
    assert cost_until(run, 20).hours == pytest.approx(120 / 3600)
    cost = cost_until(run, 35)
    assert (cost.step, cost.hours, cost.device_hours, cost.carbon_kg) == (35, pytest.approx(165 / 3600), pytest.approx(330 / 3600), None)
    kg = 330 / 3600 * 0.4 * 0.2
    assert cost_until(run, 35, gpu=find_gpu("a100-40gb"), kg_per_kwh=0.2).carbon_kg == pytest.approx(kg)
    known = make_run(tmp_path / "known", "parallel.gpu=A100-40GB", "precision=bf16")
    assert cost_until(known, 35).carbon_kg == pytest.approx(330 / 3600 * 0.4 * 0.432)


def test_a_run_that_went_on_elsewhere(tmp_path: Path) -> None:
    """Until step 20 on two devices, then on eight."""
    run = make_run(tmp_path / "run", checkpoints={10: 2, 20: 2, 40: 8})
    assert cost_until(run, 20).device_hours == pytest.approx(2 * 120 / 3600)
    cost = cost_until(run, 40)
    assert (cost.hours, cost.device_hours) == (pytest.approx(180 / 3600), pytest.approx((2 * 120 + 8 * 60) / 3600))


def test_a_step_that_was_never_reached(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    sentence = f"{run}/metrics.jsonl ends at step 40, before step 10,000; give the folder of the run that the checkpoint belongs to"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        cost_until(run, 10_000)
    with pytest.raises(ValueError, match=r"^.* has no metrics.jsonl; give folders that recipes.train wrote$"):
        cost_until(tmp_path, 1)
