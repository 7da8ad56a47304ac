"""Print where every setting of the published runs comes from, as the tables of docs/recipes.md: the comments of their YAML files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep import command
from data_prep.plain_files import parse_yaml, read_text, read_yaml
from recipes.compose import CONF_DIR, recipe_descriptions, recipe_names

PAPERS = {"gams": "GaMS", "sava": "SAVA", "low_resource": "Low-resource", "ofa": "OFA"}
_ENTRY = re.compile(r"( *)(\w+):(?: .*?)?(?: # (.*))?")


@dataclass(frozen=True)
class Setting:
    """A value of a YAML file and the comment beside it, or above the whole file."""

    key: str
    value: Any
    source: str


def published_recipes() -> list[str]:
    """Names of the recipes of published runs."""
    return [name for name in recipe_names() if name.partition("/")[0] in PAPERS]


def settings_of(path: Path) -> list[Setting]:
    """All settings of a file, with the whole key, lists as they are."""
    lines = read_text(path).splitlines()
    is_global = any("@package _global_" in line for line in lines)
    prefix = "" if is_global else f"{path.parent.name}."
    comments = dict(_comments(lines))
    return [
        Setting(prefix + key, value, comments.get(key) or _header(lines))
        for key, value in _flat(parse_yaml("\n".join(lines), subject=str(path)))
        if not key.startswith("defaults")
    ]


def choices_of(path: Path) -> list[str]:
    """The group files of a recipe's defaults list, for example `model/opt_1b`."""
    defaults = read_yaml(path).get("defaults", [])
    return [f"{group.lstrip('/')}/{choice}" for entry in defaults if isinstance(entry, dict) for group, choice in entry.items()]


def _header(lines: Sequence[str]) -> str:
    comments = []
    for line in lines:
        if not line.startswith("#"):
            break
        if "@package" not in line:
            comments.append(line.removeprefix("# "))
    return " ".join(comments)


def _comments(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Key and comment of each line that has both."""
    path: list[tuple[int, str]] = []
    for line in lines:
        found = _ENTRY.fullmatch(line)
        if found is None:
            continue
        depth = len(found[1])
        path = [*(part for part in path if part[0] < depth), (depth, found[2])]
        if found[3]:
            yield ".".join(name for _, name in path), found[3]


def _flat(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def tables() -> str:
    """The published runs with their own settings, then the groups that they share."""
    names, descriptions = published_recipes(), recipe_descriptions()
    parts = []
    for folder, paper in PAPERS.items():
        parts.append(f"### {paper}\n")
        rows = []
        for name in (name for name in names if name.startswith(f"{folder}/")):
            path = CONF_DIR / "recipe" / f"{name}.yaml"
            own = "<br>".join(f"`{setting.key}={_shown(setting.value)}` ({setting.source})" for setting in settings_of(path))
            rows.append([f"`{name}`", descriptions[name], " ".join(f"`{choice}`" for choice in choices_of(path)), own])
        parts.append(_table(["recipe", "published run", "groups", "own settings (source)"], rows))
    used = dict.fromkeys(choice for name in names for choice in choices_of(CONF_DIR / "recipe" / f"{name}.yaml"))
    groups = sorted(
        {*used, *(f"{group}/{path.stem}" for group in ("procedure", "objective") for path in (CONF_DIR / group).glob("*.yaml"))}
    )
    rows = [
        [f"`{group}`", f"`{setting.key}`", f"`{_shown(setting.value)}`", setting.source]
        for group in groups
        for setting in settings_of(CONF_DIR / f"{group}.yaml")
    ]
    return "\n".join([*parts, "### Groups\n", _table(["group", "setting", "value", "source"], rows)]) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; cells as wide as a screen are not filled up with spaces."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *rows))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    command.parser(__doc__, prog="recipes.sources", example="python -m recipes.sources").parse_args(argv)
    print(tables(), end="")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
