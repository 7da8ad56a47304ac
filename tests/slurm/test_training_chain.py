"""A real NeMo training as a chain: its time limit and a killed rank, and yet the losses of a run that was never interrupted."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recipes.runs.run_dir import METRICS_NAME
from slurm import submit
from slurm.chains import causes
from slurm.chains.submissions import current_submission
from tests.conftest import Inputs
from tests.processes import run_command
from tests.slurm.chains import LightChain, light_chain, still_there
from tests.slurm.running_slurm import ACCOUNT, RunningSlurm

STEPS, EVERY = 70, 10


def overrides(inputs: Inputs, *parallel: str) -> list[str]:
    return [
        f"model.checkpoint={inputs.checkpoint}",
        f"data.train=[{inputs.data}]",
        "data.sequence_length=64",
        "model.hidden_dropout=0.1",
        "schedule.global_batch_size=32",
        "schedule.micro_batch_size=1",  # many passes, so that the time limit comes before the end
        f"schedule.max_steps={STEPS}",
        "schedule.warmup_steps=1",
        f"run.checkpoint_every_steps={EVERY}",
        "run.log_every_steps=1",
        "parallel.tensor_parallel_size=2",
        *parallel,
    ]


def losses(run_dir: Path) -> list[tuple[int, float]]:
    path = run_dir / METRICS_NAME
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(record["step"], record["loss"]) for record in records if "loss" in record]


def wait_while_queued(chain: LightChain, condition: Callable[[], bool], *, timeout_seconds: float = 240) -> None:
    end = time.monotonic() + timeout_seconds
    while not condition():
        assert still_there(chain.job_ids) and time.monotonic() < end, chain.logs()[-6000:]
        time.sleep(0.5)


@pytest.mark.long
def test_time_limit_and_a_killed_rank_change_no_loss(slurm: RunningSlurm, inputs: Inputs, tmp_path: Path) -> None:
    run_dir, reference = tmp_path / "run", tmp_path / "reference"
    with light_chain(slurm, run_dir) as chain:
        words = ["demo_adapt", "--cluster", "local", "--account", ACCOUNT, "--set", f"runtime.venv={sys.prefix}", "--time", "00:20:00"]
        words += ["--output", str(run_dir), "--links", "4", "--signal-seconds", "900", "--submit"]
        assert submit.main([*words, *overrides(inputs, "parallel.num_nodes=2", "parallel.devices_per_node=1")]) == 0
        submission = current_submission(run_dir)
        assert submission is not None
        chain.job_ids += submission.job_ids
        first, second = submission.job_ids[:2]

        wait_while_queued(chain, lambda: len(losses(run_dir)) >= 3)
        slurm.run("scontrol", "update", f"JobId={first}", "TimeLimit=15")  # less than the notice: Slurm signals at its next look
        wait_while_queued(chain, lambda: len(chain.attempts()) == 2)
        assert chain.causes()[0] == causes.TIME_LIMIT, chain.logs()[-6000:]
        start = chain.attempts()[1].start_step
        wait_while_queued(chain, lambda: len(losses(run_dir)) > start + EVERY + 2)
        node = chain.attempts()[1].nodes[1]
        chain.on_node(node, "kill", "-9", chain.on_node(node, "pgrep", "-f", "recipes.train --recipe").split()[0])
        chain.wait_for_end(timeout_seconds=600)
        assert chain.causes() == [causes.TIME_LIMIT, causes.FAILED, causes.FINISHED], chain.logs()[-6000:]
        assert chain.attempts()[1].job_id == second
        _, killed, last = chain.attempts()
        assert killed.end is not None and f"on {node}: Killed" in killed.end.detail and last.start_step > start

    at_once = run_command(
        *("recipes.train", "--recipe", "demo_adapt", "--output", reference, *overrides(inputs, "parallel.devices_per_node=2")),
        log_dir=tmp_path / "log",
        timeout_seconds=600,
        environment={name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
    )
    assert at_once.code == 0, at_once.stderr[-3000:]
    assert [step for step, _ in losses(run_dir)] == list(range(1, STEPS + 1))
    assert losses(run_dir) == losses(reference)
