"""A training that costs nothing: real recipe, metrics and checkpoints of `recipes.runs.run_dir`, but a chain of hashes for a model.

Rank 0 trains, the others wait for the end.  Each loss depends on all steps before it, so one step lost or done twice shows in all later ones.
SIGUSR1 and SIGTERM save and leave with exit code 0, and a lease on the directory fences it, as in `recipes.train`, whose
watchdog ends a step that hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import xxhash

from common import command
from common.artifacts import write_manifest
from common.lease import Fence, take_lease, this_process
from recipes.rules.schema import Recipe, recipe_from_mapping
from recipes.runs.run_dir import CHECKPOINTS_NAME, METRICS_NAME, checkpoint_name, newest_checkpoint, record_recipe
from recipes.runs.watchdog import Watchdog
from recipes.training.loggers import MetricsFile


def recipe(steps: int, every: int, nodes: int = 1) -> Recipe:
    return recipe_from_mapping(
        {
            "name": "light",
            "model": {"checkpoint": "none"},
            "data": {"train": ["none"], "sequence_length": 8},
            "schedule": {"global_batch_size": 2, "micro_batch_size": 1, "learning_rate": 0.1, "max_steps": steps},
            "run": {"checkpoint_every_steps": every, "log_every_steps": 1},
            "parallel": {"num_nodes": nodes},
        }
    )


def loss_after(state: str) -> float:
    return int(state[:8], 16) / 2**32


def next_state(state: str) -> str:
    return xxhash.xxh3_128_hexdigest(state.encode())


def expected_losses(steps: int) -> list[float]:
    state, losses = "", []
    for _ in range(steps):
        state = next_state(state)
        losses.append(loss_after(state))
    return losses


def save(run_dir: Path, step: int, state: str, lease: Fence | None = None) -> None:
    final = run_dir / CHECKPOINTS_NAME / checkpoint_name(step)
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "weights").mkdir(parents=True)
    (partial / "weights" / "state").write_text(state)
    write_manifest(partial, stage="recipes.train", facts={"step": step})
    if lease is not None:
        lease.check()
    if not final.exists():
        partial.replace(final)


def meet(run_dir: Path) -> list[int]:
    """Listen to signals, then wait for all ranks, as the first collective does; gives the list that signals are added to."""
    leaving: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, frame: leaving.append(number))
    start = f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    own = run_dir / f"rank_{os.environ['SLURM_PROCID']}.pid"
    own.with_suffix(".partial").write_text(f"{os.uname().nodename} {os.getpid()} {start}")
    own.with_suffix(".partial").replace(own)
    ranks = [run_dir / f"rank_{rank}.pid" for rank in range(int(os.environ["SLURM_NTASKS"]))]
    while not all(rank.exists() and rank.read_text().endswith(f" {start}") for rank in ranks):
        time.sleep(0.02)
    return leaving


def train(arguments: argparse.Namespace) -> int:
    leaving = meet(arguments.output)
    launch = f"{os.environ['SLURM_JOB_ID']}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    ended = os.environ.get("SCION_ENDED_JOBS", "").split()
    with take_lease(arguments.output, this_process("light", launch=launch), ended_jobs=ended, renew_seconds=1) as lease:
        return train_with(lease, leaving, arguments)


def train_with(lease: Fence, leaving: list[int], arguments: argparse.Namespace) -> int:
    run_dir: Path = arguments.output
    record_recipe(run_dir, recipe(arguments.steps, arguments.every, int(os.environ["SLURM_NNODES"])))
    newest = newest_checkpoint(run_dir, contents=True)
    step, state = (newest[0], (newest[1] / "weights" / "state").read_text()) if newest else (0, "")
    MetricsFile(run_dir / METRICS_NAME, may_write=lambda: True).forget(last_step=step)
    with Watchdog(factor=20.0, least_seconds=2.0, other_seconds=60.0, rank=0) as watchdog:
        return steps_of(step, state, watchdog, lease, leaving, arguments)


def steps_of(step: int, state: str, watchdog: Watchdog, lease: Fence, leaving: list[int], arguments: argparse.Namespace) -> int:
    run_dir: Path = arguments.output
    metrics, hang_at = run_dir / METRICS_NAME, arguments.hang_at if step == 0 else None
    while step < arguments.steps and not leaving:
        step, state = step + 1, next_state(state)
        time.sleep(arguments.seconds_per_step if step != hang_at else 3600)
        if step == arguments.crash_at:
            raise RuntimeError("the model is not a number")
        lease.check()
        with metrics.open("a") as stream:
            stream.write(json.dumps({"step": step, "loss": loss_after(state), "tokens": 16 * step, "tokens_per_second": 16.0}) + "\n")
        if step % arguments.every == 0 or step == arguments.steps:
            save(run_dir, step, state, lease)
        watchdog.step_ended(step)
    if leaving:
        save(run_dir, step, state, lease)
    return command.DONE


def wait(run_dir: Path, steps: int) -> int:
    leaving = meet(run_dir)
    while not leaving and not (run_dir / CHECKPOINTS_NAME / checkpoint_name(steps)).exists():
        time.sleep(0.05)
    return command.DONE


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True, help="%%a stands for the index in a job array")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--seconds-per-step", type=float, default=0.05)
    parser.add_argument("--crash-at", type=int)
    parser.add_argument("--hang-at", type=int, help="step that never ends, of a run that starts anew")
    parser.add_argument("--refuse", action="store_true")
    arguments = parser.parse_args(argv)
    arguments.output = Path(str(arguments.output).replace("%a", os.environ.get("SLURM_ARRAY_TASK_ID", "")))
    if arguments.refuse:
        raise ValueError("data.train is missing; give it in the recipe")
    if os.environ["SLURM_PROCID"] == "0":
        return train(arguments)
    return wait(arguments.output, arguments.steps)


if __name__ == "__main__":
    command.run(main)
