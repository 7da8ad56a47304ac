"""The plan of a submission: GaMS on Vega, as the planner sees it and as a run that has begun says itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from common.artifacts import Manifest, write_manifest
from recipes.rules.base_models import base_model
from recipes.rules.compose import compose_recipe
from recipes.rules.inputs import RunInputs
from slurm.chains.chain import ChainPlan
from slurm.jobs.submission_plan import Submission, plan_lines
from slurm.jobs.training import training_job
from slurm.sites.cluster import load_cluster

HOUR = 3600


def _plan(
    run_dir: Path, *overrides: str, cluster: tuple[str, ...] = (), hours: int = 24, links: int = 4, steps: int = 13_400
) -> dict[str, str]:
    arguments = ["parallel=a100_40gb_16x4_tp1", "model.checkpoint=/data/nemo", "data.train=[/data/sl]", *overrides]
    recipe = compose_recipe("gams/focus", arguments)
    recipe = replace(recipe, schedule=replace(recipe.schedule, epochs=None, max_steps=steps))
    family, model = base_model("opt-1.3b", vocab_size=80_000, tied=False)
    vega = load_cluster("vega", ("account=b25", *cluster), environment={"HOME": "/home/ana"})
    job = training_job(
        recipe, recipe_argument="gams/focus", overrides=arguments, run_dir=run_dir, cluster=vega, time_limit_seconds=hours * HOUR
    )
    inputs = RunInputs(family, model, Manifest("x"), (Manifest("x", facts={"num_tokens": 28_000_000_000}),))
    lines = plan_lines(Submission(recipe, inputs, job, vega, ChainPlan(links=links), run_dir, "nothing"))
    return {line[:12].strip(): line[12:] for line in lines}


def test_the_planner_says_memory_hours_and_checkpoints(tmp_path: Path) -> None:
    plan = _plan(tmp_path / "run", cluster=("allocation_gpu_hours=5000",))
    assert plan["layout"].startswith("16 nodes x 4 tasks = TP 1 x PP 1 x DP 64, micro batch 4")
    assert re.fullmatch(r"\d+\.\d of 39\.4 GiB, \d+\.\d left on each a100-40gb", plan["memory"])
    time = re.fullmatch(r"(\d+\.\d) h for 13,400 steps of (\d+\.\d\d) s, estimated; plus checkpoints", plan["time"])
    assert time and float(time[1]) == pytest.approx(13_400 * float(time[2]) / HOUR, abs=0.1)
    used = re.fullmatch(r"(\d+) of the 5,000 allocated \((\d+\.\d)%\)", plan["GPU hours"])
    assert used and float(used[1]) == pytest.approx(float(time[1]) * 64, abs=5)
    assert re.match(r"every 500 steps; best at [\d,]+ \(Daly 2006: \d+\.\d s to save, estimated", plan["checkpoints"])


def test_a_chain_that_is_too_short_and_an_allocation_that_is_too_small_are_told(tmp_path: Path) -> None:
    plan = _plan(tmp_path / "run", cluster=("allocation_gpu_hours=100",), hours=1, links=2)
    needed = re.fullmatch(r"that is more than the chain has: --links (\d+) would be enough if nothing fails", plan[""])
    assert needed and int(needed[1]) > 2
    assert plan["GPU hours"].endswith(": too many")


def test_a_run_that_has_begun_says_how_fast_it_is(tmp_path: Path) -> None:
    records = [{"step": step, "loss": 3.0, "tokens_per_second": 2_097_152 / 2.5} for step in range(1, 30)]
    cut_off = '{"step": 30, "loss"'  # by a machine that went down
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + cut_off)
    assert _plan(tmp_path)["time"] == "9.3 h for 13,400 steps of 2.50 s, measured in this run so far; plus checkpoints"


def test_how_often_to_save_follows_from_the_measured_save_and_step(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 500, "loss": 3.0, "tokens_per_second": 2_097_152 / 2.0}) + "\n")
    (tmp_path / "checkpoints" / "step_0000500").mkdir(parents=True)
    write_manifest(tmp_path / "checkpoints" / "step_0000500", stage="recipes.train", facts={"step": 500, "save_seconds": 30.0})
    plan = _plan(tmp_path, cluster=("gpu.gpu=X100",))
    best = re.fullmatch(
        r"every 500 steps; best at ([\d,]+) \(Daly 2006: 30\.0 s to save, as measured, a failure every 792 h\)", plan["checkpoints"]
    )
    assert best is not None
    young = (2 * 30 * 792.2 * HOUR) ** 0.5 / 2.0
    assert int(best[1].replace(",", "")) == pytest.approx(young, rel=0.01)


def test_a_save_beside_the_training_is_not_asked_for_before_the_last_one_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 500, "loss": 3.0, "tokens_per_second": 2_097_152 / 2.0}) + "\n")
    (tmp_path / "checkpoints" / "step_0000500").mkdir(parents=True)
    facts = {"step": 500, "save_seconds": 0.0001, "write_seconds": 80.0}
    write_manifest(tmp_path / "checkpoints" / "step_0000500", stage="recipes.train", facts=facts)
    assert "best at 40 (" in _plan(tmp_path, cluster=("gpu.gpu=X100",))["checkpoints"]


def test_a_layout_that_does_not_fit_the_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"on vega cannot run: the layout \(TP 1 x PP 1 x DP 64, micro batch 16\) needs .* on each a100-40gb"
    ):
        _plan(tmp_path, "schedule.micro_batch_size=16")
    assert _plan(tmp_path, "schedule.micro_batch_size=16", "parallel.check_memory=false")["memory"].endswith("too many on each a100-40gb")


def test_checkpoints_that_do_not_fit_a_nodes_memory_are_refused(tmp_path: Path) -> None:
    assert _plan(tmp_path)["host memory"].endswith("and 4 processes of 3 (assumed); the job has 470")
    small = ("gpu.memory_gib=13",)
    with pytest.raises(ValueError, match=r"on vega cannot run: saving .* at most 14 GiB of a node: .* but a job on vega .* has 13 GiB"):
        _plan(tmp_path, cluster=small)
    assert _plan(tmp_path, "parallel.check_memory=false", cluster=small)["host memory"].endswith("the job has 13")


def test_a_gpu_that_the_planner_does_not_know_leaves_the_most_that_can_be_used(tmp_path: Path) -> None:
    plan = _plan(tmp_path, cluster=("gpu.gpu=X100",))
    assert plan["memory"].startswith("not estimated: the planner does not know the X100; it knows a100-40gb")
    assert plan["GPU hours"] == "at most 6,144"
    assert "time" not in plan
