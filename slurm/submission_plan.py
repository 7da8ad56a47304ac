"""What a submission would use: layout, memory, jobs, hours; the lines that are printed before anything is sent."""

from __future__ import annotations

import json
import math
from pathlib import Path

from recipes import arithmetic
from recipes.checks import RunInputs, padded_vocab_size
from recipes.run_dir import METRICS_NAME, newest_checkpoint
from recipes.schema import Recipe
from slurm.chain import ChainPlan
from slurm.cluster import Cluster
from slurm.job import Job, format_time_limit

_GIB = 2**30
_START_SECONDS = 300  # assumed of each job: containers, imports, reading a checkpoint
_LAST_RECORDS = 20  # of a run's metrics, for its speed


def plan_lines(
    recipe: Recipe, inputs: RunInputs, job: Job, cluster: Cluster, chain: ChainPlan, *, run_dir: Path, checked: str
) -> list[str]:
    """The plan as aligned lines.

    Args:
        checked: what the Slurm at hand was asked, from `slurm.site.check_site`.
    """
    parallel = recipe.parallel
    steps, step = arithmetic.total_steps(recipe), _step_of(run_dir)
    rows: list[tuple[str, str]] = [
        ("run", f"{run_dir} ({f'goes on from step {step:,}' if step else 'new'})"),
        ("recipe", f"{recipe.name}: {steps:,} steps of {arithmetic.tokens_per_step(recipe):,} tokens"),
        (
            "layout",
            f"{job.num_nodes} nodes x {job.tasks_per_node} tasks = tensor {parallel.tensor_parallel_size} x pipeline"
            f" {parallel.pipeline_parallel_size} x data {arithmetic.data_parallel_size(parallel)};"
            f" micro batch {recipe.schedule.micro_batch_size}, {arithmetic.accumulation_steps(recipe)} accumulation steps",
        ),
        (
            "memory",
            f"{_memory_gib(recipe, inputs):.1f} GiB of a GPU (estimate; {cluster.gpu.gpu or 'the GPU is not named in the cluster file'})",
        ),
        (
            "jobs",
            f"{chain.links} x {format_time_limit(job.time_limit_seconds)} on {cluster.gpu.name}, one after the other until the run is finished",
        ),
        *_hours(recipe, job, cluster, chain, steps - step, _measured_step_seconds(run_dir, recipe)),
        ("checked", checked),
    ]
    return [f"{name:<10}{text}" for name, text in rows]


def _step_of(run_dir: Path) -> int:
    newest = newest_checkpoint(run_dir)
    return newest[0] if newest else 0


def _memory_gib(recipe: Recipe, inputs: RunInputs) -> float:
    return arithmetic.estimate_memory(recipe, inputs.model, vocab_size=padded_vocab_size(recipe, inputs)).total / _GIB


def _measured_step_seconds(run_dir: Path, recipe: Recipe) -> float | None:
    """Seconds of a step as the run itself went so far, None for a new one."""
    path = run_dir / METRICS_NAME
    if not path.is_file():
        return None
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[-_LAST_RECORDS:]]
    speeds = sorted(record["tokens_per_second"] for record in records if record.get("tokens_per_second"))
    return arithmetic.tokens_per_step(recipe) / speeds[len(speeds) // 2] if speeds else None


def _hours(
    recipe: Recipe, job: Job, cluster: Cluster, chain: ChainPlan, steps_left: int, step_seconds: float | None
) -> list[tuple[str, str]]:
    """Time, jobs that it needs, GPU hours against the allocation; the most that the chain can use where the speed is not known."""
    devices = arithmetic.world_size(recipe.parallel)
    most = chain.links * job.time_limit_seconds / 3600 * devices
    allocation = cluster.allocation_gpu_hours
    rows = []
    if step_seconds is not None:
        seconds = steps_left * step_seconds
        usable = job.time_limit_seconds - chain.signal_seconds - _START_SECONDS
        needed = math.ceil(seconds / usable) if usable > 0 else 0
        rows.append(("time", f"{seconds / 3600:.1f} h for {steps_left:,} steps at {step_seconds:.2f} s each, as the run went so far"))
        if needed > chain.links:
            rows.append(("", f"that takes about {needed} jobs: --links {needed}"))
        used = f"{seconds / 3600 * devices:,.0f}"
    else:
        used = f"at most {most:,.0f}"
    share = "" if allocation is None else f" of {allocation:,.0f} ({most / allocation:.1%} of the allocation at most)"
    rows.append(("GPU hours", used + share))
    if allocation is not None and most > allocation:
        rows.append(("", "more than the allocation: Slurm may hold the last jobs back"))
    return rows
