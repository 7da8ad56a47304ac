"""A run's rehearsal in its directory, beside what the run's first step really needed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.plain_files import read_json, write_json
from recipes.planner.memory import RUNTIME_GIB
from recipes.rules.schema import Recipe
from recipes.runs.launch import installed_kernels
from recipes.runs.run_dir import flat_settings

REHEARSAL_NAME = "rehearsal.json"
FIRST_STEP_NAME = "first_step"
TOLERANCE = 0.05  # of the counted bytes: what the planner is held to, and more than allocators round
# What changes nothing of a step's memory; the sizes of a batch do.
_NO_MATTER = (
    "name",
    "seed",
    "run.",
    "parallel.gpu",
    "parallel.check_memory",
    "data.num_workers",
    "data.validation",
    "data.published_tokens",
)
_OF_THE_SCHEDULE = ("schedule.micro_batch_size", "schedule.global_batch_size")


@dataclass(frozen=True)
class FirstStep:
    """The most memory that a rank had when its first step ended, as its rehearsal counted it and as the GPU says.

    Attributes:
        gpu_gib: memory of the GPU.
        kernels: those installed, which a rehearsal does not know.
    """

    rank: int
    predicted_gib: float
    measured_gib: float
    gpu_gib: float | None
    kernels: str

    @property
    def ratio(self) -> float:
        """Measured by predicted."""
        return self.measured_gib / self.predicted_gib

    def __str__(self) -> str:
        return f"rank {self.rank} has used {self.measured_gib:.2f} GiB in the first step; its rehearsal counted {self.predicted_gib:.2f} ({self.ratio - 1:+.1%})"


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The values of a recipe that the memory of a step depends on, as JSON has them."""
    values = {
        key: value
        for key, value in flat_settings(asdict(recipe)).items()
        if not key.startswith(_NO_MATTER) and (not key.startswith("schedule.") or key in _OF_THE_SCHEDULE)
    }
    settings: dict[str, Any] = json.loads(json.dumps(values))
    return settings


def keep_rehearsal(run_dir: Path, document: Mapping[str, Any]) -> None:
    """Write a rehearsal into the directory of its run."""
    write_json(run_dir / REHEARSAL_NAME, document)


def read_rehearsal(run_dir: Path) -> dict[str, Any] | None:
    """The rehearsal of a run, None where there is none or it cannot be read."""
    try:
        document = read_json(run_dir / REHEARSAL_NAME)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and isinstance(document.get("ranks"), list) else None


def compare_first_step(run_dir: Path, recipe: Recipe, rank: int, *, measured_gib: float) -> FirstStep | None:
    """What a rank measured beside its rehearsal; None where that rank of such a recipe was not rehearsed."""
    document = read_rehearsal(run_dir)
    if document is None or document.get("settings") != settings_of(recipe):
        return None
    report: dict[str, Any] = next((report for report in document["ranks"] if report.get("rank") == rank), {})
    if not (predicted_gib := report.get("after the first step")):
        return None
    gpu_gib = report["fit"]["GiB"] if report.get("fit") else None
    return FirstStep(rank, predicted_gib, measured_gib, gpu_gib, installed_kernels())


def record_first_step(run_dir: Path, found: FirstStep) -> None:
    """Keep a comparison; each rank has a file of its own."""
    directory = run_dir / FIRST_STEP_NAME
    directory.mkdir(exist_ok=True)
    write_json(directory / f"rank-{found.rank:05}.json", {**asdict(found), "ratio": round(found.ratio, 4)})


def read_first_steps(run_dir: Path) -> list[FirstStep]:
    """The comparisons of a run, by rank."""
    found = []
    for path in sorted((run_dir / FIRST_STEP_NAME).glob("rank-*.json")):
        content = read_json(path)
        found.append(FirstStep(**{name: content[name] for name in FirstStep.__dataclass_fields__}))
    return found


def verdict(steps: Sequence[FirstStep]) -> tuple[bool, str, str]:
    """Whether no rank needed much more than was counted, what was found, and what to do.

    Args:
        steps: at least one; the rank that is furthest above its rehearsal is named.
    """
    worst = max(steps, key=lambda step: step.ratio)
    description = str(worst) + (f", the largest excess of {len(steps)} ranks" if len(steps) > 1 else "")
    if worst.ratio <= 1 + TOLERANCE:
        below = min(steps, key=lambda step: step.ratio)
        less = "; less was needed than counted, so the layout has more headroom than the plan shows" if below.ratio < 1 - TOLERANCE else ""
        return True, description + less, ""
    advice = f"more than {TOLERANCE:.0%} above"
    if match := re.search(r"uses ([^;]*)", worst.kernels):
        advice += f": {match[1]} keeps tensors that the rehearsal does not count"
    if worst.gpu_gib is not None:
        left = worst.gpu_gib - worst.measured_gib - RUNTIME_GIB
        advice += f"; {max(left, 0):.1f} of {worst.gpu_gib:.1f} GiB are left beside CUDA and NCCL"
        if left < 0:
            advice += (
                ", so later steps may run out of memory: use a smaller schedule.micro_batch_size, or a layout from `python -m recipes.plan`"
            )
    return False, description, advice
