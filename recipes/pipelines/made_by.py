"""Whether an output that a pipeline has no record of is what its stage would make, by the arguments and inputs of its manifest."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import Manifest
from common.cli import ROOT
from recipes.rules.schema import Recipe
from recipes.runs.run_dir import recipe_changes

NO_MATTER = ("output", "workers")  # what changes nothing in an output


def difference(manifest: Manifest, words: Sequence[str], inputs: Sequence[tuple[str, Manifest]]) -> str | None:
    """What speaks against an output being that of a command, None where nothing does.

    Args:
        words: of the command: `python -m MODULE ...`.
        inputs: name and manifest of each output of another stage that it reads.
    """
    module = words[2]
    if manifest.stage != module:
        return f"it was written by {manifest.stage}, not by {module}"
    expected, default = command.arguments_of(importlib.import_module(module).main, words[3:])
    for name in sorted((expected.keys() | manifest.arguments.keys()) - set(NO_MATTER)):
        if name not in expected:
            return f"its manifest says {name}={manifest.arguments[name]!r}, which is not among the arguments of {module}"
        made = manifest.arguments.get(name, default[name])
        if _plain(made) != _plain(expected[name]):
            return f"it was made with {name}={made!r}, and the stage has {_plain(expected[name])!r}"
    for name, read in inputs:
        if read.digest not in manifest.inputs.values():
            return f"it was not made from the present output of stage {name}"
    return None


def difference_of_run(before: Recipe, expected: Recipe) -> str | None:
    """What speaks against a finished run being that of a recipe, None where nothing does."""
    if expected.schedule.epochs is not None:  # a run records the steps that its passes have
        before = replace(before, freeze=expected.freeze, schedule=replace(before.schedule, max_steps=expected.schedule.max_steps))
    return "; ".join(recipe_changes(before, expected)) or None


def _plain(value: Any) -> Any:
    """A value as a manifest has it, with the same path for every way to write it."""
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, str | Path) and (ROOT / value).exists():
        return os.path.realpath(ROOT / value)
    return str(value) if isinstance(value, Path) else value
