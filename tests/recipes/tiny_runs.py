"""Running the tiny form of a recipe, and exporting what it trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.conftest import Inputs
from tests.processes import run_command

TIMEOUT_SECONDS = 180


def train_tiny(recipe: str, run_dir: Path, inputs: Inputs, data: Path, *overrides: str) -> list[dict[str, Any]]:
    """Train with a command; gives the records of its metrics."""
    finished = run_command(
        *("recipes.train", "--recipe", recipe, "--output", run_dir, "+size=tiny"),
        *(f"model.checkpoint={inputs.checkpoint}", f"data.train=[{data}]", f"data.validation={inputs.held_out}"),
        *overrides,
        log_dir=run_dir.with_suffix(".logs"),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert finished.code == 0, finished.stderr[-4000:]
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def export(checkpoint: Path, output: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint on the Hugging Face side."""
    finished = run_command("conversion.nemo_to_hf", "--input", checkpoint, "--output", output, log_dir=output.with_suffix(".logs"))
    assert finished.code == 0, finished.stderr[-4000:]
    return load_file(output / "model.safetensors")
