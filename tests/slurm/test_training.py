"""A recipe on four nodes of a real Slurm, as `slurm.submit` sends it: real ranks under srun, and the losses of a run on one machine."""

from __future__ import annotations

import json
from pathlib import Path

from recipes.compose import compose_recipe
from slurm.render import render_job
from slurm.training import training_job
from tests.conftest import Inputs
from tests.processes import run_command
from tests.slurm.running_slurm import RunningSlurm

STEPS = 3


def _overrides(inputs: Inputs, *parallel: str) -> list[str]:
    return [
        f"model.checkpoint={inputs.checkpoint}",
        f"data.train=[{inputs.data}]",
        "data.sequence_length=48",
        "model.hidden_dropout=0.1",
        "schedule.global_batch_size=8",
        "schedule.micro_batch_size=4",
        f"schedule.max_steps={STEPS}",
        "schedule.warmup_steps=1",
        f"run.checkpoint_every_steps={STEPS}",
        "run.log_every_steps=1",
        "parallel.tensor_parallel_size=2",
        *parallel,
    ]


def _losses(run_dir: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_four_nodes_train_at_tp_2_dp_2_as_one_machine_does(slurm: RunningSlurm, inputs: Inputs, tmp_path: Path) -> None:
    overrides = _overrides(inputs, "parallel.num_nodes=4", "parallel.devices_per_node=1")
    job = training_job(
        compose_recipe("demo_adapt", overrides),
        recipe_argument="demo_adapt",
        overrides=overrides,
        run_dir=tmp_path / "nodes",
        cluster=slurm.cluster(),
        time_limit_seconds=300,
    )
    job.log_dir.mkdir(parents=True)
    job_id = slurm.submit(render_job(job, slurm.cluster()))
    assert slurm.wait(job_id, timeout_seconds=240) == "COMPLETED", (job.log_dir / f"nodes-{job_id}.log").read_text()
    assert slurm.job(job_id)["NumNodes"] == "4"

    here = _overrides(inputs, "parallel.num_nodes=1", "parallel.devices_per_node=4")
    finished = run_command(
        "recipes.train", "--recipe", "demo_adapt", "--output", tmp_path / "here", *here, log_dir=tmp_path / "logs", timeout_seconds=240
    )
    assert finished.code == 0, finished.stderr
    assert len(_losses(tmp_path / "nodes")) == STEPS
    assert _losses(tmp_path / "nodes") == _losses(tmp_path / "here")
