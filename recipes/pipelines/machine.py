"""What this machine has to share out, what a task needs of it, and which tasks it cannot run."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.memory import free_memory, total_memory
from recipes.pipelines.file import Pipeline, Task, recipe_of
from recipes.rules.schema import Recipe

GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """Cores by their numbers, GPUs by their names, memory in GiB.

    Attributes:
        free_gib: that tasks may take together; one that wants more, but no more than there is, runs alone.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...]
    memory_gib: float
    free_gib: float

    @classmethod
    def here(cls) -> Machine:
        """What this process may use."""
        return cls(tuple(sorted(os.sched_getaffinity(0))), _gpus(), total_memory() / GIB, free_memory() / GIB)


@dataclass(frozen=True)
class Share:
    """What a task gets, or is free."""

    cores: tuple[int, ...]
    gpus: tuple[str, ...]
    memory_gib: float


@dataclass(frozen=True)
class Need:
    """What a task has to get."""

    cores: int
    gpus: int
    memory_gib: float


def need_of(pipeline: Pipeline, task: Task, machine: Machine) -> Need:
    """Of cores never more than there are, which only takes longer; a training needs a GPU, or else cores, for each of its processes."""
    resources, processes = pipeline.resources[pipeline.stages[task.stage].resources], 1
    gpus = resources.gpus
    if pipeline.stages[task.stage].train is not None:
        processes = recipe_of(pipeline, task).parallel.world_size
        gpus = processes if machine.gpus else 0
    cores = len(machine.cores) if resources.cpus is None else min(resources.cpus * processes, len(machine.cores))
    return Need(max(1, cores), gpus, resources.memory_gib or 0)


def machine_problems(pipeline: Pipeline, tasks: Sequence[Task], machine: Machine) -> list[str]:
    """What cannot run on a machine, each with the key to change: of each stage the first point, of stages that are refused alike one line."""
    stages: dict[str, list[str]] = {}
    for task in {task.stage: task for task in reversed(tasks)}.values():
        for problem in _problems(pipeline, task, machine):
            stages.setdefault(problem, []).insert(0, task.name)
    subjects = {
        problem: f"stage {names[0]}: it" if len(names) == 1 else f"stages {', '.join(names)}: each" for problem, names in stages.items()
    }
    return [f"{subject} {problem}" for problem, subject in reversed(subjects.items())]


def _problems(pipeline: Pipeline, task: Task, machine: Machine) -> Iterator[str]:
    stage = pipeline.stages[task.stage]
    need, recipe = need_of(pipeline, task, machine), recipe_of(pipeline, task) if stage.train is not None else None
    if need.memory_gib > machine.memory_gib:
        yield (
            f"asks for {need.memory_gib:g} GiB of memory, and this machine has {math.floor(machine.memory_gib)}; lower"
            f" resources.{stage.resources}.memory_gib, or run it elsewhere with --on"
        )
    if need.gpus > len(machine.gpus):
        key = _device_key(recipe) if recipe is not None else f"resources.{stage.resources}.gpus"
        here = f"{len(machine.gpus)}; lower {key}" if machine.gpus else f"none; set machine.device of the project to cpu, or {key} to 0"
        yield f"asks for {need.gpus} GPU{'s' if need.gpus > 1 else ''}, and this machine has {here}, or run it elsewhere with --on"
    if recipe is not None and recipe.parallel.num_nodes > 1:
        yield f"asks for {recipe.parallel.num_nodes} nodes in its recipe; set parallel.num_nodes=1, or run it elsewhere with --on"


def _device_key(recipe: Recipe) -> str:
    return f"parallel.devices_per_node (it is {recipe.parallel.devices_per_node})"


def _gpus() -> tuple[str, ...]:
    """Those that CUDA would show to a process, without loading torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name for name in chosen.split(",") if name and name != "-1")
    try:
        words = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        found = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(found.stdout.split()) if found.returncode == 0 else ()
