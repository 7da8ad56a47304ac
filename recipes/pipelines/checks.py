"""What the commands and recipes of a pipeline would refuse when their turn comes, before anything is sent."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from common.command import arguments_of
from recipes.pipelines.file import Pipeline, Task, command_of, dependencies_of, output_of, recipe_of
from recipes.pipelines.planned import inputs_of, planned_model_of
from recipes.planner.estimate import memory_problems
from recipes.planner.hardware import Gpu
from recipes.rules.checks import check_run, recipe_problems
from recipes.rules.schema import Recipe
from recipes.runs.run_dir import CHECKPOINTS_NAME

_CHECKPOINT = re.compile(r"step_(\d+)")


def task_problems(pipeline: Pipeline, tasks: Sequence[Task], *, gpu: Gpu | None = None) -> list[str]:
    """What is wrong with the tasks that are to run: of each stage with the first point that is wrong, since they are mostly alike.

    Args:
        gpu: that trainings run on, where it is known.
    """
    problems: dict[str, list[str]] = {}
    for task in tasks:
        if not problems.get(task.stage):
            problems[task.stage] = [f"stage {task.name}: {problem}" for problem in _problems(pipeline, task, tasks, gpu)]
    return [problem for found in problems.values() for problem in found]


def _problems(pipeline: Pipeline, task: Task, tasks: Sequence[Task], gpu: Gpu | None) -> Iterator[str]:
    if pipeline.stages[task.stage].train is not None:
        has_inputs = not any(need in tasks for need in dependencies_of(pipeline, task))
        yield from _training_problems(pipeline, task, recipe_of(pipeline, task), gpu, has_inputs=has_inputs)
        return
    _, _, name, *words = command_of(pipeline, task)
    module = importlib.import_module(name)
    try:
        arguments, _ = arguments_of(module.main, words)
        if hasattr(module, "argument_problems"):
            yield from module.argument_problems(arguments)
    except ValueError as error:
        yield str(error)
    for need in dependencies_of(pipeline, task):
        if pipeline.stages[need.stage].train is not None:
            yield from _unsaved(words, f"{output_of(pipeline, need)}/{CHECKPOINTS_NAME}", recipe_of(pipeline, need))


def _training_problems(pipeline: Pipeline, task: Task, recipe: Recipe, gpu: Gpu | None, *, has_inputs: bool) -> Iterator[str]:
    """All that the training itself would refuse; memory by the model's shape, also where its inputs are still to be made."""
    if problems := recipe_problems(recipe):
        yield from problems
        return
    here = recipe if gpu is None else replace(recipe, parallel=replace(recipe.parallel, gpu=None))
    try:
        if has_inputs:
            check_run(here, inputs_of(recipe), visible=gpu)
        elif (model := planned_model_of(pipeline, task, recipe)) is not None:
            yield from memory_problems(here, model, visible=gpu)
    except ValueError as error:
        yield str(error)


def _unsaved(words: Sequence[str], checkpoints: str, recipe: Recipe) -> Iterator[str]:
    """Checkpoints that a command names and the training does not leave."""
    if recipe.schedule.epochs is not None:  # the data decides where it ends
        return
    total, every, keep = recipe.total_steps, recipe.run.checkpoint_every_steps, recipe.run.keep_checkpoints
    for word in words:
        path = Path(word.partition("=")[2] if "=" in word else word)
        if (found := _CHECKPOINT.fullmatch(path.name)) and str(path.parent) == checkpoints:
            step = int(found[1])
            is_saved = 0 < step <= total and (step % every == 0 or step == total)
            if not is_saved:
                yield f"it reads the checkpoint of step {step}, but the training saves every {every} steps and the last, {total}"
            elif keep is not None and -(-total // every) - -(-step // every) >= keep:
                yield f"it reads the checkpoint of step {step}, of which the training, {total} steps long, keeps the newest {keep} (run.keep_checkpoints)"
