"""Which training a checkpoint is of: what its manifest says under `run`, and exports, results and figures carry on."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.artifacts import Manifest, digest_bytes
from recipes.rules.schema import Recipe

RUN = "run"  # key of a manifest's facts
RUN_ID_NAME = "run_id"
# What makes no other training of a recipe: places, whose contents have digests, and how the work is divided, saved and shown.
_NOT_OF_THE_RECIPE = {
    "name": None,
    "seed": None,
    "run": None,
    "parallel": None,
    "recomputation": None,
    "model": ("checkpoint", "factors"),
    "data": ("train", "table", "validation", "num_workers"),
    "schedule": ("micro_batch_size", "published_steps"),
}


def run_facts(run_dir: Path, recipe: Recipe, train: Sequence[Manifest]) -> dict[str, Any]:
    """Id, output and seed of a run, and name and digest of its recipe; runs that differ in the seed alone have the same digest."""
    said = {"recipe": _of_the_recipe(asdict(recipe)), "data": [manifest.digest for manifest in train]}
    return {
        "id": run_id(run_dir),
        "output": run_dir.resolve().name,
        "name": recipe.name,
        "recipe": digest_bytes(json.dumps(said, sort_keys=True, default=str).encode()),
        "seed": recipe.seed,
    }


def run_id(run_dir: Path) -> str:
    """The id of the run in a directory, drawn when it begins; for the process that completes its checkpoints."""
    path = run_dir / RUN_ID_NAME
    if path.is_file():
        known, _, place = path.read_text(encoding="utf-8").strip().partition("\n")
        # A copy of a run is another run; one that was moved is the same.
        if not (place and os.path.exists(os.path.join(place, RUN_ID_NAME)) and not os.path.samefile(place, run_dir)):
            return known
    drawn = uuid.uuid4().hex[:16]
    run_dir.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{drawn}.partial")
    partial.write_text(f"{drawn}\n{os.path.realpath(run_dir)}\n", encoding="utf-8")
    partial.replace(path)
    return drawn


def _of_the_recipe(content: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in content.items() if _NOT_OF_THE_RECIPE.get(key, ()) is not None}
    for key, left_out in _NOT_OF_THE_RECIPE.items():
        if left_out is not None:
            kept[key] = {name: value for name, value in content[key].items() if name not in left_out}
    return kept
