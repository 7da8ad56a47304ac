"""What a submission would use: layout, memory, jobs, hours; the lines that are printed before anything is sent; and the rehearsal that goes before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.planner import costs
from recipes.planner.estimate import RunEstimate, estimate_run, refusal
from recipes.planner.hardware import GPUS, find_gpu
from recipes.planner.layout import layout_of
from recipes.planner.memory import estimate_host, host_refusal
from recipes.rehearsal.apart import rehearse_apart
from recipes.rehearsal.fit import fit_problems, summary
from recipes.rules.checks import planned_model
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe, raise_all
from recipes.runs.run_dir import METRICS_NAME, measured_save_seconds
from recipes.runs.run_state import full_step_seconds, last_records, read_run_state
from slurm.chains.chain import ChainPlan
from slurm.jobs.job import Job, format_time_limit
from slurm.sites.cluster import Cluster

_START_SECONDS = 300  # assumed of each job: containers, imports, reading a checkpoint
_LAST_RECORDS = 20  # of a run's metrics, for its speed

Row = tuple[str, str]


@dataclass(frozen=True)
class Submission:
    """All that the plan speaks of.

    Attributes:
        checked: what the local Slurm was asked, from `slurm.sites.site.check_site`.
    """

    recipe: Recipe
    inputs: RunInputs
    job: Job
    cluster: Cluster
    chain: ChainPlan
    run_dir: Path
    checked: str


def plan_lines(submission: Submission) -> list[str]:
    """The plan as aligned lines.

    Raises:
        ValueError: if the layout does not fit the cluster's GPUs, or its checkpoints the memory of a node.
    """
    recipe, job, cluster, run_dir = submission.recipe, submission.job, submission.cluster, submission.run_dir
    steps, step = recipe.total_steps, read_run_state(run_dir).saved_step
    estimate = _estimate(submission, steps, step)
    rows: list[Row] = [
        ("run", f"{run_dir} ({f'resumes from step {step:,}' if step else 'new'})"),
        ("recipe", f"{recipe.name}: {steps:,} steps of {recipe.tokens_per_step:,} tokens"),
        (
            "layout",
            f"{job.num_nodes} nodes x {job.tasks_per_node} tasks = {layout_of(recipe)}, {recipe.accumulation_steps} accumulation steps",
        ),
        ("memory", f"{estimate.choice.fit} on each {estimate.gpu.name}" if estimate else f"not estimated: {_why_not(submission)}"),
        ("host memory", _host_memory(submission)),
        (
            "jobs",
            f"{submission.chain.links} x {format_time_limit(job.time_limit_seconds)} in {cluster.gpu.name}, one after the other until the run is finished",
        ),
        *_hours(submission, steps, step, estimate),
        ("checkpoints", _checkpoints(submission, estimate)),
        ("checked", submission.checked),
    ]
    return [f"{name:<12}{text}" for name, text in rows]


def job_memory_gib(job: Job, cluster: Cluster) -> float:
    """What a job with GPUs gets of a node's memory."""
    return job.memory_gib or cluster.gpu.memory_gib * min(1.0, job.gpus_per_node / cluster.gpu.gpus_per_node)


def _host_memory(submission: Submission) -> str:
    """What saving and loading take of a node's memory, of what the job gets of it.

    Raises:
        ValueError: if it is more.
    """
    recipe, job, partition = submission.recipe, submission.job, submission.cluster.gpu
    if not partition.gpus_per_node:
        return "not estimated: the partition has no GPUs"
    model, layout = planned_model(recipe, submission.inputs), layout_of(recipe)
    memory = job_memory_gib(job, submission.cluster)
    if recipe.parallel.check_memory:
        problems = host_refusal(model, layout, memory_gib=memory, has=f"a job on {submission.cluster.name} with so many GPUs has")
        raise_all(problems, subject=f"recipe {recipe.name} on {submission.cluster.name}")
    return f"{estimate_host(model, layout)}; the job has {memory:g}"


def _why_not(submission: Submission) -> str:
    """Why the planner cannot say anything; empty where it can."""
    name = submission.cluster.gpu.gpu
    if name is None:
        return "the cluster file names no GPU (set gpu.gpu=NAME)"
    if name.lower() not in GPUS:
        return f"the planner does not know the {name}; it knows {', '.join(GPUS)} (set gpu.gpu=NAME)"
    if submission.recipe.precision != "bf16":
        return "the planner's times are for bfloat16 only"
    return ""


def _estimate(submission: Submission, steps: int, first_step: int) -> RunEstimate | None:
    if _why_not(submission):
        return None
    recipe = submission.recipe
    model, layout, gpu = planned_model(recipe, submission.inputs), layout_of(recipe), find_gpu(str(submission.cluster.gpu.gpu))
    if recipe.parallel.check_memory:
        raise_all(refusal(model, layout, gpu), subject=f"recipe {recipe.name} on {submission.cluster.name}")
    return estimate_run(model, layout, gpu, steps=steps, first_step=first_step, batches=recipe.schedule.batches)


def _measured_step_seconds(run_dir: Path, recipe: Recipe) -> float | None:
    """Seconds of a step with a full batch as the run itself went so far, None for a new one."""
    path = run_dir / METRICS_NAME
    if not path.is_file():
        return None
    records = last_records(path, _LAST_RECORDS)
    seconds = sorted(full_step_seconds(record, recipe) for record in records if record.get("tokens_per_second"))
    return seconds[len(seconds) // 2] if seconds else None


def _hours(submission: Submission, steps: int, first_step: int, estimate: RunEstimate | None) -> list[Row]:
    """Time, jobs that it needs, GPU hours against the allocation; the most that the chain can use where the speed is not known."""
    job, chain, allocation = submission.job, submission.chain, submission.cluster.allocation_gpu_hours
    devices = submission.recipe.parallel.world_size
    step_seconds, source = _measured_step_seconds(submission.run_dir, submission.recipe), "measured in this run so far"
    if step_seconds is None and estimate is not None:
        step_seconds, source = estimate.choice.time.total, "estimated"
    rows = []
    if step_seconds is not None:
        seconds = submission.recipe.steps_of_full_batches(first_step, steps) * step_seconds
        size = "with a full batch, fewer at first, " if first_step < submission.recipe.schedule.batches.ramp_steps else ""
        rows.append(
            (
                "time",
                f"{seconds / 3600:.1f} h for {steps - first_step:,} steps of {step_seconds:.2f} s, {size}{source}; plus checkpoints",
            )
        )
        usable = job.time_limit_seconds - chain.signal_seconds - _START_SECONDS
        needed = math.ceil(seconds / usable) if usable > 0 else chain.links
        if needed > chain.links:
            rows.append(("", f"that is more than the chain has: --links {needed} would be enough if nothing fails"))
        hours = seconds / 3600 * devices
        text = f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
    else:
        hours = chain.links * job.time_limit_seconds / 3600 * devices
        text = f"at most {hours:,.0f}"
    if allocation is not None:
        text += f" of the {allocation:,.0f} allocated ({hours / allocation:.1%})" + (": too many" if hours > allocation else "")
    return [*rows, ("GPU hours", text)]


def _checkpoints(submission: Submission, estimate: RunEstimate | None) -> str:
    """How often the run saves, and how often would lose the least time, for as far as save and step are known."""
    recipe, run_dir = submission.recipe, submission.run_dir
    every = f"every {recipe.run.checkpoint_every_steps:,} steps"
    if recipe.run.checkpoint_every_minutes is not None:
        every += f" and {recipe.run.checkpoint_every_minutes:g} minutes"
    seconds, source = measured_save_seconds(run_dir), "as measured"
    if seconds is None and estimate is not None:
        seconds, source = (estimate.save_seconds, estimate.save_seconds), "estimated"
    step_seconds = _measured_step_seconds(run_dir, recipe) or (estimate.choice.time.total if estimate else None)
    if seconds is None or step_seconds is None:
        return every
    save_seconds, write_seconds = seconds
    failure_seconds = costs.failure_seconds(recipe.parallel.world_size)
    # A save beside the training hardly stops it, but the next one waits until that is written.
    best = max(1, round(max(costs.checkpoint_interval(save_seconds, failure_seconds), write_seconds) / step_seconds))
    return f"{every}; best at {best:,} (Daly 2006: {save_seconds:.1f} s to save, {source}, a failure every {failure_seconds / 3600:.0f} h)"


def rehearsed(recipe_argument: str, overrides: Sequence[str], cluster: Cluster) -> dict[str, Any]:
    """Play ranks of a run on GPUs such as the cluster has.

    Raises:
        ValueError: if the cluster has no GPUs, or the rehearsal fails.
    """
    if not cluster.gpu.gpus_per_node:
        raise ValueError(f"{cluster.name} has no GPUs, so there is nothing to rehearse; leave --rehearse out")
    name = (cluster.gpu.gpu or "").lower()
    return rehearse_apart(recipe_argument, overrides, gpu=name if name in GPUS else None)


def require_fit(rehearsal: dict[str, Any], *, subject: str) -> None:
    """Refuse what needs more memory than a GPU has.

    Raises:
        ValueError: with the rank that needs the most, what it needs, and which layout would fit.
    """
    raise_all(fit_problems(rehearsal)[:1], subject=subject)


def rehearsal_lines(rehearsal: dict[str, Any]) -> list[str]:
    """A line for each rank, aligned as those of a plan."""
    return [
        f"{'rehearsed' if number == 0 else '':<12}rank {report['rank']}: {summary(report)}"
        for number, report in enumerate(rehearsal["ranks"])
    ]
