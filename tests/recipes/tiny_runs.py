"""Running the tiny form of a recipe, and exporting what it trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.conftest import Inputs
from tests.gloo import run_on_gloo
from tests.processes import call_command

TIMEOUT_SECONDS = 400


def train_on_ranks(run_dir: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    """`recipes.train` on two ranks, which are forked: importing the engine takes longer than these runs; gives the records of its metrics."""
    codes = run_on_gloo(
        "tests.recipes.training_ranks:command",
        world_size=2,
        directory=run_dir.with_suffix(".logs"),
        timeout_seconds=TIMEOUT_SECONDS,
        initialize=False,
        arguments=[*map(str, arguments), "--output", str(run_dir)],
    )
    assert codes == [0, 0]
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def train_tiny(recipe: str, run_dir: Path, inputs: Inputs, data: Path, *overrides: str) -> list[dict[str, Any]]:
    """Train the tiny form of a recipe."""
    paths = (f"model.checkpoint={inputs.checkpoint}", f"data.train=[{data}]", f"data.validation={inputs.held_out}")
    return train_on_ranks(run_dir, "--recipe", recipe, "+size=tiny", *paths, *overrides)


def export(checkpoint: Path, output: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint on the Hugging Face side."""
    call_command("conversion.nemo_to_hf", "--input", checkpoint, "--output", output)
    return load_file(output / "model.safetensors")
