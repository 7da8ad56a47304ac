"""The settings of recipes, each with the comment beside it: in YAML, where it comes from; in the schema, what it means."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.plain_files import parse_yaml, read_text, read_yaml

_ENTRY = re.compile(r"( *)(\w+):(?: .*?)?(?: # (.*))?")


@dataclass(frozen=True)
class Setting:
    """A value of a YAML file and the comment beside it, or above the whole file."""

    key: str
    value: Any
    source: str


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
    return [
        f"{group.removeprefix('override ').lstrip('/')}/{choice}"
        for entry in defaults
        if isinstance(entry, dict)
        for group, choice in entry.items()
    ]


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


_EXPLAINED = re.compile(r"    (\w+):.*?  # (.*)")


def comments_of(kind: type) -> dict[str, str]:
    """Field -> the comment beside it."""
    return {found[1]: found[2] for found in map(_EXPLAINED.fullmatch, inspect.getsource(kind).splitlines()) if found}
