"""The tiny forms of published runs, trained on two processes: one for each behaviour in the fast tests, all of them in the slow ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.recipes.conftest import TEXT, Inputs

from tests.processes import run_command

TIMEOUT_SECONDS = 180


@pytest.fixture(scope="session")
def small_data(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of which a pass takes a few steps."""
    base = tmp_path_factory.mktemp("small")
    text = base / "sl.txt"
    text.write_text("\n".join(TEXT.read_text(encoding="utf-8").splitlines()[:25]) + "\n", encoding="utf-8")
    finished = run_command(
        "data_prep.to_megatron", "--input", text, "--tokenizer", inputs.tokenizer, "--output", base / "data", log_dir=base / "logs"
    )
    assert finished.code == 0, finished.stderr
    return base / "data"


def _train(recipe: str, run_dir: Path, inputs: Inputs, data: Path, *overrides: str) -> list[dict[str, Any]]:
    finished = run_command(
        *("recipes.train", "--recipe", recipe, "--output", run_dir, "+size=tiny"),
        *(f"model.checkpoint={inputs.checkpoint}", f"data.train=[{data}]", f"data.validation={inputs.held_out}"),
        *overrides,
        log_dir=run_dir.with_suffix(".logs"),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert finished.code == 0, finished.stderr[-4000:]
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_multi_epoch(inputs: Inputs, small_data: Path, tmp_path: Path) -> None:
    records = _train("gams/multi_epoch", tmp_path / "run", inputs, small_data)
    tokens = json.loads((small_data / "scion.json").read_text())["facts"]["num_tokens"]
    steps = 4 * ((tokens - 1) // 48) // 8
    assert [record["step"] for record in records if "loss" in record] == list(range(1, steps + 1))
    recorded = json.loads((tmp_path / "run/recipe.json").read_text())
    assert recorded["schedule"]["max_steps"] == steps
    assert recorded["freeze"][0]["until_step"] == -(-((tokens - 1) // 48) // 8)


def test_two_stages_of_adapters(inputs: Inputs, small_data: Path, tmp_path: Path) -> None:
    """Embeddings and head first, then adapters too; the export has them in the weights, and the body apart from them is the source's."""
    run = tmp_path / "run"
    records = _train("low_resource/llama2", run, inputs, small_data, "procedure=2_stage", "schedule.learning_rate=1e-2")
    steps = [record["step"] for record in records if "loss" in record]
    half = json.loads((run / "recipe.json").read_text())["freeze"][1]["until_step"]
    assert half * 2 in (len(steps), len(steps) + 1)
