"""A page that shows a whole recipe: every key with its value, where that comes from, and what it means."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from common.pages import rendered
from recipes.rehearsal.page import shown_rehearsal
from recipes.rules import schema
from recipes.rules.compose import CONF_DIR
from recipes.rules.explained import comments_of
from recipes.rules.schedule_figure import schedule_figure
from recipes.rules.schema import Recipe
from recipes.rules.settings import choices_of, settings_of

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
