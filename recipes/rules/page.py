"""A page that shows a whole recipe: every key with its value, where that comes from, and what it means; and a drawing of its schedule."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.figure_style import Palette, drawn
from common.pages import Drawing, rendered
from recipes.numbers import arithmetic
from recipes.numbers.schedules import in_words, parts_of_run
from recipes.rehearsal.page import shown_rehearsal
from recipes.rules import schema
from recipes.rules.compose import CONF_DIR
from recipes.rules.schema import Recipe
from recipes.rules.settings import choices_of, comments_of, settings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT = "default"


def recipe_page(recipe: Recipe, *, chosen: str, overrides: Sequence[str], rehearsal: Mapping[str, Any] | None = None) -> str:
    """The page.

    Args:
        recipe: composed, perhaps with steps in place of epochs.
        chosen: name of a bundled recipe, or a YAML file, as on the command line.
        overrides: as on the command line.
        rehearsal: see `recipes.rehearsal.run.document_of`; it comes first.
    """
    sources, explained = _sources(chosen, overrides), explanations()
    sections: dict[str, list[list[str]]] = {}
    for key, value in _values(recipe):
        general = re.sub(r"\[\d+\]", "", key)
        sections.setdefault(general.partition(".")[0] if "." in general else "recipe", []).append(
            [key, _shown(value), _source_of(key, sources), explained.get(general, "")]
        )
    header = ("key", "value", "from", "what it is")
    return rendered(
        "recipe.html",
        title=f"Recipe {recipe.name}",
        rehearsal=rehearsal and shown_rehearsal(rehearsal),
        schedule=None if _has_no_steps(recipe) else schedule_figure(recipe),
        sections={name: (header, rows) for name, rows in sections.items()},
    )


def _has_no_steps(recipe: Recipe) -> bool:
    """Whether its data decides, which was not looked at."""
    return recipe.schedule.max_steps is None and recipe.schedule.train_tokens is None


def _values(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in ((one.name, getattr(section, one.name)) for one in fields(section)):
        key = f"{prefix}{name}"
        if is_dataclass(value):
            yield from _values(value, f"{key}.")
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for number, element in enumerate(value):
                yield from _values(element, f"{key}[{number}].")
        else:
            yield key, value


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {element}" for key, element in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def explanations() -> dict[str, str]:
    """The comment beside each key of the schema."""
    found: dict[str, str] = {}
    for name, kind in vars(schema).items():
        if inspect.isclass(kind) and is_dataclass(kind) and kind.__module__ == schema.__name__:
            section = {"Recipe": "", "FreezeRule": "freeze.", "LoRARecipe": "lora.", "RampUpRecipe": "schedule.ramp_up."}.get(
                name, f"{name.removesuffix('Recipe').lower()}."
            )
            found |= {section + key: comment for key, comment in comments_of(kind).items()}
    return found


def _sources(chosen: str, overrides: Sequence[str]) -> dict[str, str]:
    """Key, or the section that is given as a whole -> where its value comes from; what counts more comes later."""
    path = Path(chosen) if chosen.endswith((".yaml", ".yml")) else CONF_DIR / "recipe" / f"{chosen}.yaml"
    groups = [group for group in choices_of(path) if (CONF_DIR / f"{group}.yaml").is_file()]
    for override in overrides:
        group, _, choice = override.removeprefix("+").partition("=")
        if (CONF_DIR / group / f"{choice}.yaml").is_file():
            groups = [*(name for name in groups if name.partition("/")[0] != group), f"{group}/{choice}"]
    sources: dict[str, str] = {}
    for name, file in [*((group, CONF_DIR / f"{group}.yaml") for group in groups), (path.name, path)]:
        sources |= {setting.key: f"{name}: {setting.source}" if setting.source else name for setting in settings_of(file)}
    return sources | {override.lstrip("+").partition("=")[0]: "command line" for override in overrides}


def _source_of(key: str, sources: Mapping[str, str]) -> str:
    """That of the key, else of the section or list that it is in."""
    while key not in sources:
        shorter = key.rpartition("[")[0] if key.endswith("]") else key.rpartition(".")[0]
        if not shorter:
            return DEFAULT
        key = shorter
    return sources[key]


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
