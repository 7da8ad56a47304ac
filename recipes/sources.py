"""Print the source of every setting of the published runs, as tables made from the comments of their YAML files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from common import command
from recipes.rules.compose import CONF_DIR, recipe_descriptions, recipe_names
from recipes.rules.settings import choices_of, settings_of

PAPERS = {"gams": "GaMS", "gams3": "GaMS3", "sava": "SAVA", "low_resource": "Low-resource", "ofa": "OFA"}


def published_recipes() -> list[str]:
    """Names of the recipes of published runs."""
    return [name for name in recipe_names() if name.partition("/")[0] in PAPERS]


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
        {
            *used,
            *(
                f"{group}/{path.stem}"
                for group in ("procedure", "objective", "rate", "batch", "steps")
                for path in (CONF_DIR / group).glob("*.yaml")
            ),
        }
    )
    rows = [
        [f"`{group}`", f"`{setting.key}`", f"`{_shown(setting.value)}`", setting.source]
        for group in groups
        for setting in settings_of(CONF_DIR / f"{group}.yaml")
    ]
    return "\n".join([*parts, "### Option groups\n", _table(["group", "setting", "value", "source"], rows)]) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; cells as wide as a screen are not filled up with spaces."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *rows))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    command.parser(__doc__, example="python -m recipes.sources").parse_args(argv)
    print(tables(), end="")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
