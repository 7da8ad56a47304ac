"""A drawing of a run's schedule: the learning rate of each step, that of the tables where they have their own, and batches that grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.figure_style import Palette, drawn
from common.pages import Drawing
from recipes.numbers import arithmetic
from recipes.numbers.schedules import in_words, parts_of_run
from recipes.rules.schema import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 400  # of a line; steps at which a part begins come on top


def schedule_figure(recipe: Recipe) -> Drawing:
    """The drawing.

    Args:
        recipe: with steps.
    """
    steps, schedule = recipe.total_steps, recipe.schedule
    light, dark = drawn(lambda palette: _draw(recipe, steps, palette), None)
    words = f"The learning rate: {in_words(schedule, steps=steps)}."
    if schedule.ramp_up is not None:
        parts = ", then ".join(f"{size:,} for {number:,} steps" for size, number in schedule.batches.parts(steps))
        words += f" Samples of a step: {parts}."
    return Drawing(light, dark, words, words)


def _draw(recipe: Recipe, steps: int, palette: Palette) -> Figure:
    from matplotlib import pyplot as plt

    schedule, batches = recipe.schedule, recipe.schedule.batches
    rows = 2 if schedule.ramp_up is not None else 1
    figure, axes = plt.subplots(rows, 1, figsize=(7.2, 2.4 * rows), sharex=True, squeeze=False, layout="constrained")
    at = _steps_drawn(recipe, steps)
    rate = axes[0][0]
    rate.plot(at, [arithmetic.learning_rate(step, schedule, steps=steps) for step in at], color=palette.series[0], label="all else")
    if schedule.embedding_learning_rate is not None:
        tables = [arithmetic.embedding_learning_rate(step, schedule, steps=steps) for step in at]
        rate.plot(at, tables, color=palette.series[1], label="token table and output layer")
        rate.legend()
    rate.set_title("learning rate")
    rate.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    rate.set_ylim(bottom=0)
    if rows == 2:
        axes[1][0].step(at, [batches.size(step) for step in at], where="post", color=palette.series[2])
        axes[1][0].set_title("samples of a step")
        axes[1][0].set_ylim(bottom=0)
    for (axis,) in axes:
        axis.grid(visible=True)
        axis.set_xlim(0, steps)
    axes[-1][0].set_xlabel("step")
    return figure


def _steps_drawn(recipe: Recipe, steps: int) -> list[int]:
    edges, step = [0, steps - 1], 0
    for number in parts_of_run(recipe.schedule, steps=steps).values():
        step += number
        edges.append(min(step, steps - 1))
    edges += [stretch.first_step for stretch in recipe.schedule.batches.stretches if stretch.first_step < steps]
    return sorted({*edges, *range(0, steps, max(1, steps // _POINTS))})
