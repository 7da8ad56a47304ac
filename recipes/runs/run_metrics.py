"""What a run's own files tell of it afterwards: its metrics, and what it took to reach a step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.artifacts import read_manifest
from common.plain_files import read_json
from recipes.planner import costs
from recipes.planner.hardware import Gpu, find_gpu
from recipes.rules.schema import recipe_from_mapping
from recipes.runs.run_dir import CHECKPOINTS_NAME, METRICS_NAME, RECIPE_NAME


@dataclass(frozen=True)
class RunCost:
    """What the steps up to one took, validation and the start of processes apart.

    Attributes:
        device_hours: over all devices, of which a run that went on elsewhere may have had more or fewer.
        carbon_kg: of the devices at their design power; None where they are not GPUs that are known.
    """

    step: int
    hours: float
    device_hours: float
    carbon_kg: float | None


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`, but one that is being written.

    Raises:
        ValueError: if there are none, or one is not valid JSON.
    """
    path = run_dir / METRICS_NAME
    if not path.is_file():
        raise ValueError(f"{run_dir} has no {METRICS_NAME}; give folders that recipes.train wrote")
    rows = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                if not line.endswith("\n"):
                    break  # the run is writing it, or was cut off
                raise ValueError(f"line {number} of {path} is not valid JSON: {error}") from error
    return rows


def cost_until(run_dir: Path, step: int, *, gpu: Gpu | None = None, kg_per_kwh: float = costs.KG_PER_KWH) -> RunCost:
    """What a run took to reach a step; steps that an interruption undid are not in its files, and not counted.

    Args:
        gpu: what its devices were; by default what its recipe says.

    Raises:
        ValueError: if the folder is not a run's, or the run did not come so far.
    """
    paces = {row["step"]: row["seconds_per_step"] for row in read_metrics(run_dir) if "seconds_per_step" in row}
    if max(paces, default=0) < step:
        raise ValueError(
            f"{run_dir / METRICS_NAME} ends at step {max(paces, default=0):,}, before step {step:,}; give the folder of the run that the checkpoint belongs to"
        )
    recipe = recipe_from_mapping(read_json(run_dir / RECIPE_NAME))
    devices = _devices(run_dir)
    seconds = device_seconds = 0.0
    first = 0
    for last, pace in sorted(paces.items()):
        until = min(last, step)
        seconds += (until - first) * pace
        # Those of the part of the run that saved these steps.
        of_part = next((devices[saved] for saved in sorted(devices) if saved >= until), recipe.parallel.world_size)
        device_seconds += (until - first) * pace * of_part
        first = until
        if until == step:
            break
    gpu = gpu or (find_gpu(recipe.parallel.gpu) if recipe.parallel.gpu else None)
    carbon = None if gpu is None else costs.carbon_kg(device_seconds / 3600, gpu.watts, kg_per_kwh=kg_per_kwh)
    return RunCost(step, seconds / 3600, device_seconds / 3600, carbon)


def _devices(run_dir: Path) -> dict[int, int]:
    """Step of each checkpoint that is there -> devices that it was reached with."""
    found = {}
    for path in (run_dir / CHECKPOINTS_NAME).glob("step_[0-9]*"):
        if (manifest := read_manifest(path)) is not None:
            parallel = manifest.arguments["parallel"]
            found[int(manifest.facts["step"])] = int(parallel["num_nodes"]) * int(parallel["devices_per_node"])
    return found
