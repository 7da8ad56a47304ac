"""The tiny project with two methods and few steps, and the numbers that it ends with."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from recipes.runs.run_metrics import read_metrics
from tests.processes import ROOT


def words(work_dir: Path) -> list[str]:
    """For `scion run`."""
    changes = ("size=tiny", "transfer=[mean,focus]", "training.checkpoints=2", f"machine.work_dir={work_dir}")
    return [str(ROOT / "recipes" / "projects" / "demo_tiny.yaml"), *changes]


def numbers(work_dir: Path) -> dict[str, Any]:
    """Losses by training and step, bits per byte by model and text, digests of weights."""
    results = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in work_dir.glob("results/*/result.json")}
    runs = {path.parent.name: read_metrics(path) for path in work_dir.glob("*/run")}
    weights = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in work_dir.glob("*/hf*/*.safetensors")}
    return {
        "losses": {name: {record["step"]: record["loss"] for record in records if "loss" in record} for name, records in runs.items()},
        "bits per byte": {
            name: {text: found["bits_per_byte"] for text, found in result["texts"].items()} for name, result in results.items()
        },
        "weights": {str(path.relative_to(work_dir)): digest for path, digest in weights.items()},
    }
