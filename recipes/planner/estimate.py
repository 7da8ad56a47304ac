"""What a run is expected to take on a GPU: one record for the plan and for the job scripts that ask for its hours."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recipes.numbers.batches import Batches
from recipes.planner import costs
from recipes.planner.hardware import Gpu, find_gpu, has_known_rates
from recipes.planner.layout import Layout, layout_of
from recipes.planner.memory import host_refusal
from recipes.planner.parameters import PlannedModel
from recipes.planner.ranking import Choice, judge, ranked
from recipes.planner.throughput import step_time
from recipes.rules.schema import Recipe


@dataclass(frozen=True)
class RunEstimate:
    """A run on a GPU, from its first step to its last.

    Attributes:
        choice: memory, time and rate of its layout.
        hours: of the steps; saves, validation, queues and failures come on top.
        save_seconds: of one checkpoint with optimizer state, at the assumed rate of the file system.
        failure_seconds: mean time between failures of so many GPUs.
        checkpoint_seconds: between two checkpoints, for the least loss (Young 1974, Daly 2006).
        checkpoint_steps: the same in optimizer steps.
    """

    gpu: Gpu
    choice: Choice
    steps: int
    hours: float
    gpu_hours: float
    kwh: float
    carbon_kg: float
    checkpoint_bytes: int
    save_seconds: float
    failure_seconds: float
    checkpoint_seconds: float
    checkpoint_steps: int


def estimate_run(
    model: PlannedModel,
    layout: Layout,
    gpu: Gpu,
    *,
    steps: int,
    first_step: int = 0,
    batches: Batches | None = None,
    write_rate: float = costs.WRITE_RATE,
    kg_per_kwh: float = costs.KG_PER_KWH,
) -> RunEstimate:
    """A run of so many steps.

    Args:
        first_step: from which it resumes.
        batches: of the run; by default all are those of the layout.
        write_rate: bytes per second of the file system, for a checkpoint.
        kg_per_kwh: carbon dioxide of the grid.
    """
    choice = judge(model, layout, gpu)
    hours = _seconds(model, layout, gpu, choice, steps=steps, first_step=first_step, batches=batches) / 3600
    gpu_hours = hours * layout.num_devices
    size = costs.checkpoint_bytes(model, layout)
    save_seconds = size / write_rate
    failure_seconds = costs.failure_seconds(layout.num_devices)
    interval = costs.checkpoint_interval(save_seconds, failure_seconds)
    return RunEstimate(
        gpu=gpu,
        choice=choice,
        steps=steps - first_step,
        hours=hours,
        gpu_hours=gpu_hours,
        kwh=costs.energy_kwh(gpu_hours, gpu.watts),
        carbon_kg=costs.carbon_kg(gpu_hours, gpu.watts, kg_per_kwh=kg_per_kwh),
        checkpoint_bytes=size,
        save_seconds=save_seconds,
        failure_seconds=failure_seconds,
        checkpoint_seconds=interval,
        checkpoint_steps=max(1, round(interval / choice.time.total)),
    )


def _seconds(
    model: PlannedModel, layout: Layout, gpu: Gpu, choice: Choice, *, steps: int, first_step: int, batches: Batches | None
) -> float:
    """Of all steps: smaller batches take fewer passes, but no less for the optimizer and its gathering."""
    if batches is None:
        return (steps - first_step) * choice.time.total
    unit = layout.micro_batch_size * layout.data_parallel_size
    return sum(
        number * (step_time(model, replace(layout, accumulation_steps=size // unit), gpu).total)
        for size, number in batches.parts(steps, first=first_step)
    )


def memory_problems(recipe: Recipe, model: PlannedModel, *, visible: Gpu | None) -> list[str]:
    """What is wrong where a layout does not fit its GPU, or its checkpoints the node, unless the recipe says to try all the same.

    Args:
        visible: the GPU of this machine, which counts where the recipe names none.
    """
    parallel = recipe.parallel
    problems = []
    if parallel.node_memory_gib is not None and parallel.check_memory:
        problems = host_refusal(model, layout_of(recipe), memory_gib=parallel.node_memory_gib, has="parallel.node_memory_gib is")
    try:
        gpu = find_gpu(parallel.gpu) if parallel.gpu is not None else visible
    except ValueError as error:
        return [*problems, f"parallel.gpu: {error}"]
    if gpu is None or not parallel.check_memory:
        return problems
    return problems + refusal(model, layout_of(recipe), gpu)


def refusal(model: PlannedModel, layout: Layout, gpu: Gpu) -> list[str]:
    """Nothing if a layout fits a GPU; else one sentence with the numbers and what fits."""
    choice = judge(model, layout, gpu)
    if choice.fit.fits:
        return []
    memory, gib = choice.memory, 2**30
    parts = f"{memory.state / gib:.1f} of weights, gradients and optimizer, {memory.activations / gib:.1f} of activations"
    best = ranked(model, layout, gpu, num_devices=layout.num_devices)
    if best and best[0].fit.fits:
        which = "the fastest that fits" if has_known_rates(gpu) else "one that fits"
        advice = f"{which} is {best[0].layout} ({best[0].fit.needed_gib:.1f} GiB)"
    else:
        advice = f"no layout on {layout.num_devices} of them fits"
    return [
        f"the layout ({layout}) needs {choice.fit.needed_gib:.1f} GiB on each {gpu.name}, which has {gpu.memory_gib:.1f}: {parts},"
        f" {memory.logits / gib:.1f} of logits; {advice}; parallel.check_memory=false skips this check"
    ]
