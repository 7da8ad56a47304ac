"""The two ends of a run in Hugging Face's format: a folder to start from, and one that the run leaves.

The first process converts; those beside it, which another launcher started, wait for the folder, which appears when it is complete.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common.artifacts import MANIFEST_NAME, read_manifest
from conversion.checkpoints.hf_files import CONFIG_NAME
from recipes.rules.schema import Recipe
from recipes.runs.launch import is_first_process
from recipes.runs.run_dir import START_NAME, newest_checkpoint

EXPORT_NAME = "hf"
_POLL_SECONDS = 0.5


def with_converted_checkpoint(recipe: Recipe, run_dir: Path, *, check: Callable[[Recipe], object]) -> Recipe:
    """The recipe with `run_dir/start`, converted now or earlier, where model.checkpoint is a Hugging Face folder.

    Args:
        check: refuses a recipe that cannot run, before anything is converted for it.

    Raises:
        ValueError: if the folder cannot be converted, or the run started from another one.
    """
    source, start = Path(recipe.model.checkpoint), run_dir / START_NAME
    made = read_manifest(start)
    if not (source / CONFIG_NAME).is_file() and (made is None or source.exists()):
        return recipe
    if made is not None and Path(made.arguments["input"]).resolve() != source.resolve():
        raise ValueError(f"{run_dir} holds a run that started from {made.arguments['input']}, not {source}; choose another --output")
    if made is None:
        check(recipe)
        _convert("conversion.hf_to_nemo", source, start, recipe, converts=is_first_process())
    return replace(recipe, model=replace(recipe.model, checkpoint=str(start)))


def export_finished(recipe: Recipe, run_dir: Path, *, converts: bool) -> None:
    """Leave the last checkpoint of a finished run in `run_dir/hf`, where run.export asks for it and it is not there.

    Args:
        converts: False to wait until another process has written it.

    Raises:
        ValueError: if it cannot be converted.
    """
    newest = newest_checkpoint(run_dir)
    if recipe.run.export is None or newest is None or newest[0] < recipe.total_steps:
        return
    output = run_dir / EXPORT_NAME
    made = read_manifest(output)
    if made is None:
        _convert("conversion.nemo_to_hf", newest[1], output, recipe, converts=converts)
    elif made.facts.get("step") != newest[0]:
        raise ValueError(f"{output} is not of step {newest[0]:,}, the last of the run; remove it to export that step")


def _convert(module: str, source: Path, output: Path, recipe: Recipe, *, converts: bool) -> None:
    if converts:
        words = ["-m", module, "--input", str(source), "--output", str(output)]
        if subprocess.run([sys.executable, *words], check=False, stdout=sys.stderr).returncode:
            raise ValueError(f"{source} could not be converted with {module}; its message is above")
        return
    deadline = time.monotonic() + recipe.run.hang_other_seconds
    while not (output / MANIFEST_NAME).exists():
        if time.monotonic() > deadline:
            raise ValueError(f"the first process did not write {output} within run.hang_other_seconds ({recipe.run.hang_other_seconds:g})")
        time.sleep(_POLL_SECONDS)
