"""Chains of light trainings on the tests' Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipes.runs.run_dir import METRICS_NAME
from slurm.chains.attempts import Attempt, read_attempts
from slurm.chains.chain import ChainPlan, submit_chain
from slurm.jobs.job import Job
from slurm.jobs.queue import cancel_jobs
from slurm.sites.cluster import Cluster
from tests.slurm.light_training import expected_losses
from tests.slurm.running_slurm import RunningSlurm


def still_there(job_ids: Iterable[str]) -> set[str]:
    """Those of the jobs that have not ended."""
    words = ["squeue", "--noheader", "--array", "--format=%i"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()) & set(job_ids)


def light_job(run_dir: Path, *options: str | float) -> Job:
    """The light training alone, two tasks on a node."""
    return Job(
        name="light",
        command=("python", "-m", "tests.slurm.light_training", "--output", str(run_dir), *map(str, options)),
        time_limit_seconds=1200,
        log_dir=run_dir.parent,
        tasks_per_node=2,
        gpus_per_task=1,
        memory_gib=8,
    )


@dataclass
class LightChain:
    """A run of the light training; `stop_everything` ends all its jobs."""

    slurm: RunningSlurm
    run_dir: Path
    job_ids: list[str]

    def submit(
        self,
        *options: str | float,
        plan: ChainPlan | None = None,
        num_nodes: int = 2,
        cluster: Cluster | None = None,
        total_steps: int | None = None,
        **changes: Any,
    ) -> list[str]:
        """Send the chain with options of the light training, and with changes of its job."""
        job = replace(light_job(self.run_dir, *options), num_nodes=num_nodes, **changes)
        job_ids = submit_chain(job, cluster or self.slurm.cluster(), self.run_dir, plan or ChainPlan(), total_steps=total_steps)
        self.job_ids += job_ids
        return job_ids

    def attempts(self) -> list[Attempt]:
        return read_attempts(self.run_dir)

    def causes(self) -> list[str | None]:
        return [attempt.end.cause if attempt.end else None for attempt in self.attempts()]

    def steps(self) -> list[int]:
        path = self.run_dir / METRICS_NAME
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, condition: Callable[[], bool], *, timeout_seconds: float = 240) -> None:
        """Wait for a condition, or fail with the logs of all attempts."""
        end = time.monotonic() + timeout_seconds
        while not condition():
            assert time.monotonic() < end, f"late after {timeout_seconds} s\n{self.logs()}"
            time.sleep(0.05)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: step in self.steps())

    def wait_for_end(self, *, timeout_seconds: float = 240) -> None:
        """Wait until no job of the chain is left."""
        self.wait_for(lambda: not still_there(self.job_ids), timeout_seconds=timeout_seconds)

    def logs(self) -> str:
        return "\n".join(
            f"== {path}\n{path.read_text(errors='replace')}" for path in sorted((self.run_dir / "attempts").glob("**/*lo[gt]*"))
        )

    def rank(self, rank: int) -> tuple[str, str]:
        """Node and process id of a rank."""
        node, process_id, _ = (self.run_dir / f"rank_{rank}.pid").read_text().split()
        return node, process_id

    def on_node(self, node: str, *words: str) -> str:
        """Run a command on a node; gives its output."""
        return self.slurm.run(self.slurm.tool, "--state", self.slurm.state, "exec", "--node", node, "--", *words).stdout

    def kill_script(self, job_id: str) -> None:
        """SIGKILL to the job's shell, so that nobody is left to say why it ended."""
        node = self.attempts()[-1].nodes[0]
        (process_id,) = self.on_node(node, "pgrep", "-f", f"^/bin/bash .*job{job_id}/slurm_script").split()
        self.on_node(node, "kill", "-9", process_id)

    def check_losses(self, steps: int) -> None:
        """Every step once, with the loss of a run that was never interrupted."""
        lines = [json.loads(line) for line in (self.run_dir / METRICS_NAME).read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, steps + 1)), self.logs()
        assert [line["loss"] for line in lines] == expected_losses(steps)


@contextlib.contextmanager
def light_chain(slurm: RunningSlurm, run_dir: Path) -> Iterator[LightChain]:
    """A chain whose jobs are all gone at the end of the block."""
    before = dict(os.environ)
    os.environ.update(slurm.environment)  # the code under test calls Slurm's commands as a user's shell would
    chain = LightChain(slurm, run_dir, [])
    run_dir.mkdir(exist_ok=True)
    try:
        yield chain
    finally:
        cancel_jobs(chain.job_ids)
        os.environ.clear()
        os.environ.update(before)
