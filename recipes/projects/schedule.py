"""The recipe of a project's trainings: how long, in which batches, and which steps are exported."""

from __future__ import annotations

import math
from collections.abc import Sequence

from common.cli import ROOT
from recipes.projects.schema import Project, Training
from recipes.rules.compose import compose_recipe
from recipes.rules.schema import Recipe

_USUAL = "language"  # the recipe whose warmup follows the budget
_WARMUP_SHARE = 20  # of the steps, one in so many


def exported_steps(recipe: Recipe, number: int) -> list[int]:
    """So many steps of a run, evenly from its beginning to its last."""
    total = recipe.total_steps
    every = math.ceil(total / number)
    return [*range(every, total, every), total]


def chosen_recipe(project: Project, name: str) -> tuple[str, list[str], Recipe]:
    """Name, overrides and result of the recipe."""
    training, machine = project.training, project.machine
    words = [
        *([f"parallel.devices_per_node={machine.processes}"] if machine.processes else []),
        *([f"data.sequence_length={training.sequence_length}"] if training.sequence_length else []),
        *(
            [f"schedule.learning_rate={training.learning_rate:g}", f"schedule.min_learning_rate={training.learning_rate / 10:g}"]
            if training.learning_rate
            else []
        ),
        *([f"schedule.global_batch_size={training.batch}"] if training.batch else []),
    ]
    recipe = _composed(name, [*words, *training.overrides])
    if machine.device == "cpu" and recipe.precision != "32":
        words.append("precision='32'")
    words += _micro_batch(recipe)
    words += _procedure(name, training.procedure)
    total = _budget(training, recipe)
    if total is not None:
        words += [f"schedule.max_steps={total}", *(f"schedule.{key}=null" for key in ("train_tokens", "epochs"))]
        if name == _USUAL or recipe.schedule.warmup_steps >= total:
            words.append(f"schedule.warmup_steps={max(1, total // _WARMUP_SHARE) if total > 1 else 0}")
    words += training.overrides
    return name, words, _composed(name, words)


def _procedure(name: str, procedure: str | None) -> list[str]:
    """The choice of which parameters learn, in the place of the recipe's or beside its others."""
    if procedure in (None, "all"):
        return []
    try:
        _composed(name, [f"procedure={procedure}"])
    except ValueError as error:
        if "add one with +procedure" not in str(error):
            raise
        return [f"+procedure={procedure}"]
    return [f"procedure={procedure}"]


def _composed(name: str, words: Sequence[str]) -> Recipe:
    path = str(ROOT / name) if name.endswith((".yaml", ".yml")) else name
    return compose_recipe(path, ["model.checkpoint=later", "data.train=[later]", *words])


def _micro_batch(recipe: Recipe) -> list[str]:
    """A micro batch that the batch can be cut into, no larger than the recipe's."""
    parallel, schedule = recipe.parallel, recipe.schedule
    cut = parallel.tensor_parallel_size * parallel.pipeline_parallel_size * parallel.context_parallel_size
    ranks = max(1, parallel.num_nodes * parallel.devices_per_node // cut)
    fitting = [size for size in range(1, schedule.micro_batch_size + 1) if schedule.global_batch_size % (size * ranks) == 0]
    if not fitting or fitting[-1] == schedule.micro_batch_size:
        return []
    return [f"schedule.micro_batch_size={fitting[-1]}"]


def _budget(training: Training, recipe: Recipe) -> int | None:
    """The steps that the file asks for, None where the recipe decides."""
    if training.tokens is None:
        return training.steps
    return max(1, round(training.tokens / recipe.tokens_per_step))
