"""The tiny form of a recipe: its behaviour on two CPU processes in seconds, by overrides that follow from the recipe itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from recipes.rules.published import published_steps
from recipes.rules.schema import RampUpRecipe, Recipe


@dataclass(frozen=True)
class Size:
    """The numbers of a `conf/size/*.yaml`."""

    sequence_length: int
    global_batch_size: int
    micro_batch_size: int
    steps: int  # of a run that does not follow its data
    devices: int
    tensor_parallel_size: int


def size_overrides(recipe: Recipe, size: Size) -> list[str]:
    """What turns a recipe into its form of this size, as overrides.

    Numbers of steps keep their share of the run, but are at least 2; passes over the data stay passes.  The shape of the published
    model is no longer asked of the checkpoint, nor how its embeddings were made.
    """
    return [f"++{key}={'null' if value is None else value}" for key, value in _values(recipe, size)]


def _values(recipe: Recipe, size: Size) -> Iterator[tuple[str, object]]:
    schedule, run = recipe.schedule, recipe.run
    steps = published_steps(recipe)

    def scaled(number: int) -> int:
        return max(2, math.floor(number * size.steps / steps)) if number else 0  # from two on it shows: the first step has rate 0

    yield from ((f"model.{key}", None) for key in ("base", "vocab_size", "method", "output_layer", "fallback", "factorised_size"))
    yield "precision", "'32'"
    yield "data.sequence_length", size.sequence_length
    yield "data.published_tokens", None
    yield "data.blend", None
    yield "data.num_workers", 0
    yield "schedule.global_batch_size", size.global_batch_size
    yield "schedule.micro_batch_size", size.micro_batch_size
    yield "schedule.train_tokens", None
    yield "schedule.published_steps", None
    yield "schedule.max_steps", size.steps if schedule.epochs is None else None
    yield "schedule.warmup_steps", scaled(schedule.warmup_steps)
    yield "schedule.constant_steps", scaled(schedule.constant_steps)
    for name in ("hold_steps", "decay_steps"):
        if (number := getattr(schedule, name)) is not None:
            yield f"schedule.{name}", scaled(number)
    if schedule.ramp_up is not None:
        yield from _ramp_up(schedule.ramp_up, size, share_of_samples=size.steps * size.global_batch_size / schedule.batches.samples(steps))
    yield "parallel.num_nodes", 1
    yield "parallel.devices_per_node", size.devices
    yield "parallel.tensor_parallel_size", size.tensor_parallel_size
    yield "parallel.pipeline_parallel_size", 1
    yield "parallel.context_parallel_size", 1
    yield "parallel.gpu", None
    if recipe.recomputation is not None and recipe.recomputation.num_layers is not None:
        yield "recomputation.num_layers", 1  # the model that is trained in the place of the published one has few
    yield "run.checkpoint_every_steps", max(1, size.steps // 2)
    yield "run.checkpoint_every_minutes", None
    yield "run.wandb_project", None
    yield "run.log_every_steps", 1
    if run.validate_every_steps is not None:
        yield "run.validate_every_steps", max(1, size.steps // 2)
        yield "run.validation_batches", 1
    for number, rule in enumerate(recipe.freeze):
        if rule.until_step is not None:
            yield f"freeze.{number}.until_step", scaled(rule.until_step)


def _ramp_up(ramp: RampUpRecipe, size: Size, *, share_of_samples: float) -> Iterator[tuple[str, object]]:
    """Two sizes of batches show a ramp-up, if there is a smaller one that can be dealt out."""
    unit = size.micro_batch_size * size.devices // size.tensor_parallel_size
    way = size.global_batch_size - unit
    if not way:
        yield "schedule.ramp_up", None
        return
    yield "schedule.ramp_up.start_batch_size", unit
    yield "schedule.ramp_up.batch_size_increment", way
    yield "schedule.ramp_up.samples", max(1, math.floor(ramp.samples * share_of_samples))
