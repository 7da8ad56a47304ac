"""A submission that is stopped at any of its steps: never two trainings in one directory, no job that nobody sees, and nothing lost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm.chains.run_report import report_run
from slurm.chains.submissions import jobs_of, read_chain_state
from tests.processes import ROOT
from tests.slurm import light_training
from tests.slurm.interrupted_submission import FINISHED_NAME, submit
from tests.slurm.running_slurm import RunningSlurm


def finished_run(directory: Path) -> None:
    directory.mkdir()
    light_training.record_recipe(directory, light_training.recipe(2, 1))
    for step in (1, 2):
        light_training.save(directory, step, "state")


def in_the_queue(run_dir: Path) -> set[str]:
    """All jobs of a run, found by their name, which no other has."""
    words = ["squeue", "--noheader", f"--name={run_dir.name}", "--format=%A"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


def all_are_seen(run_dir: Path) -> bool:
    seen = {job.job_id for job in jobs_of(run_dir)}
    there = in_the_queue(run_dir)
    return there <= seen | {job.job_id for job in jobs_of(run_dir)}  # one may have come between


def go_on_until_finished(run_dirs: list[Path], *, timeout_seconds: float = 240) -> None:
    """Submit every run again and again, as an impatient user."""
    end = time.monotonic() + timeout_seconds
    left = run_dirs
    while left:
        for run_dir in left:
            with contextlib.suppress(ValueError):  # refused, because it has jobs
                submit(run_dir)
        left = [run_dir for run_dir in left if not read_chain_state(run_dir).is_finished]
        assert time.monotonic() < end, {run_dir.name: report_run(run_dir) for run_dir in left}


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "signals",
    [
        pytest.param(["SIGKILL", "SIGHUP:sending", "SIGINT:sending"], id="killed"),
        pytest.param(["SIGHUP", "SIGINT", "SIGTERM"], id="asked"),
    ],
)
def test_wherever_a_submission_is_stopped(signals: list[str], slurm: RunningSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.use(monkeypatch)
    finished_run(tmp_path / FINISHED_NAME)
    words = [sys.executable, "-m", "tests.slurm.interrupted_submission", str(tmp_path), *signals]
    stopped: dict[Path, str] = {}
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None and harness.stderr is not None
        for line in harness.stdout:
            run_dir, code = line.split()
            stopped[Path(run_dir)] = code
            assert not Path(run_dir).is_dir() or all_are_seen(Path(run_dir)), f"{run_dir} has jobs that nobody sees"
            with contextlib.suppress(ValueError):
                submit(Path(run_dir))  # at once, while the jobs of the stopped one may be starting
        written = harness.stderr.read()
    assert harness.returncode == 0, written
    assert len(stopped) > 15 and "0" not in stopped.values(), stopped
    go_on_until_finished(list(stopped))
    end = time.monotonic() + 30
    while any(map(in_the_queue, stopped)):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert [run_dir.name for run_dir in stopped if (run_dir / "two_trained_at_once").exists()] == []
    assert {(run_dir / "saved").read_text() for run_dir in stopped} == {"step_0000001\nstep_0000002\n"}, "no step twice"
