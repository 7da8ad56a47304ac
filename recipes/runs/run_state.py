"""How far a run is: its checkpoints, its recipe's steps, its last metrics, and whether it was asked to stop."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.artifacts import check_files, read_manifest
from common.plain_files import read_json
from recipes.rules.schema import Recipe, recipe_from_mapping
from recipes.runs.run_dir import CHECKPOINTS_NAME, METRICS_NAME, RECIPE_NAME

STOP_NAME = "STOP"  # slurm.stop leaves it; submitting again removes it
_DAMAGED = "damaged_"
_TAIL_BYTES = 1 << 16
_LAST_RECORDS = 200  # among which one has a training loss


@dataclass(frozen=True)
class RunState:
    """What the files of a run say.

    Attributes:
        saved_step: of the newest complete checkpoint, 0 where there is none.
        total_steps: of the recipe, or of the longer one that was submitted since; None before the first start of the training.
        metrics: the last line of `metrics.jsonl` with a training loss; empty before the first one.
        stop_requested: whether `slurm.stop` asked for an end.
    """

    saved_step: int
    total_steps: int | None
    metrics: dict[str, Any]
    stop_requested: bool

    @property
    def is_finished(self) -> bool:
        """Whether the last step is saved."""
        return self.total_steps is not None and self.saved_step >= self.total_steps


def read_run_state(run_dir: Path, *, at_least: int = 0) -> RunState:
    """What the files of a run say; never writes.

    Args:
        at_least: steps that the run is to have, where somebody asked for more than its recipe says so far.
    """
    recipe = read_recipe(run_dir)
    return RunState(
        saved_step=next((step for step, _, problem in _checkpoints(run_dir) if problem is None), 0),
        total_steps=max(recipe.total_steps, at_least) if recipe else None,
        metrics=next((record for record in reversed(last_records(run_dir / METRICS_NAME, _LAST_RECORDS)) if "loss" in record), {}),
        stop_requested=(run_dir / STOP_NAME).exists(),
    )


def full_step_seconds(record: Mapping[str, Any], recipe: Recipe) -> float:
    """What a step with a full batch takes, by the metrics of a step."""
    seconds = record.get("seconds_per_step") or recipe.tokens_per_step / float(record["tokens_per_second"])  # of an earlier version
    full = recipe.schedule.global_batch_size
    return float(seconds) * full / record.get("batch_size", full)


def read_recipe(run_dir: Path) -> Recipe | None:
    """The recipe that the run started with, None before it did."""
    path = run_dir / RECIPE_NAME
    if not path.exists():
        return None
    try:
        return recipe_from_mapping(read_json(path))
    except ValueError as error:
        raise ValueError(f"{path} is not a recipe: {error}") from error


def set_damaged_aside(run_dir: Path, *, contents: bool) -> list[str]:
    """Rename damaged checkpoints that are newer than the newest whole one, so that training resumes from that.

    Args:
        contents: also read every byte of the newest, which the ranks of a training do themselves before they train on it, a part each.

    Returns:
        A sentence for each.
    """
    sentences = []
    for step, path, problem in _checkpoints(run_dir, contents=contents):
        if problem is None:
            break
        aside = path.with_name(_DAMAGED + path.name)
        path.replace(aside)
        sentences.append(f"the checkpoint of step {step} is damaged ({problem}); it was renamed to {aside}, and the one before is used")
    return sentences


def _checkpoints(run_dir: Path, *, contents: bool = False) -> Iterator[tuple[int, Path, str | None]]:
    """Step and place of each checkpoint, the newest first, and what is wrong with it."""
    found = ((int(path.name.removeprefix("step_")), path) for path in (run_dir / CHECKPOINTS_NAME).glob("step_[0-9]*"))
    for step, path in sorted(found, reverse=True):
        try:
            manifest = read_manifest(path)
            if manifest is None:
                yield step, path, "it has no manifest"
                continue
            check_files(path, manifest, contents=contents)
        except ValueError as error:
            yield step, path, str(error).partition(";")[0]
        else:
            yield step, path, None


def last_records(path: Path, number: int) -> list[dict[str, Any]]:
    """The last whole lines of `metrics.jsonl`, at most so many; none where there is no such file."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines[-number - 1 :]:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut off by a crash, or by the start of the part that was read
        if isinstance(record, dict):
            records.append(record)
    return records[-number:]
