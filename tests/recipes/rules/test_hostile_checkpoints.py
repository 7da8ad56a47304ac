"""A training refuses a checkpoint that would run something, before any process of it is started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from common.artifacts import read_manifest, write_manifest
from recipes.train import main
from tests.conftest import Inputs
from tests.conversion.hostile_files import CODE


@pytest.mark.parametrize("place", ["in the index", "in an object of the optimizer", "in bytes that an object is", "in what is not sharded"])
def test_code_in_the_base_checkpoint(inputs: Inputs, tmp_path: Path, place: str) -> None:
    checkpoint = _hostile(inputs, tmp_path / "nemo", tmp_path / "proof", place)
    with pytest.raises(ValueError, match=r"asks to run posix\.system when it is loaded, which is not safe; do not load it$"):
        main(_arguments(inputs, tmp_path / "run", checkpoint))
    assert not (tmp_path / "proof").exists() and not (tmp_path / "run").exists()


def test_code_in_the_checkpoint_of_an_interrupted_run(inputs: Inputs, tmp_path: Path) -> None:
    newest = _hostile(inputs, tmp_path / "run/checkpoints/step_0000002", tmp_path / "proof", "in an object of the optimizer")
    base, data = read_manifest(inputs.checkpoint), read_manifest(inputs.data)
    assert base is not None and data is not None
    facts = {**base.facts, "step": 2}
    write_manifest(newest, stage="recipes.train", facts=facts, inputs={"checkpoint": base.digest, str(inputs.data): data.digest})
    with pytest.raises(ValueError, match=r"asks to run posix\.system when it is loaded, which is not safe; do not load it$"):
        main(_arguments(inputs, tmp_path / "run", inputs.checkpoint))
    assert not (tmp_path / "proof").exists()


def _hostile(inputs: Inputs, folder: Path, proof: Path, place: str) -> Path:
    """A checkpoint whose manifest says of every file what it is: a digest does not tell who wrote it."""
    shutil.copytree(inputs.checkpoint, folder)
    manifest = read_manifest(folder)
    assert manifest is not None
    CODE[place](folder, proof)
    write_manifest(folder, stage=manifest.stage, facts=manifest.facts)
    return folder


def _arguments(inputs: Inputs, run_dir: Path, checkpoint: Path) -> list[str]:
    settings = (f"model.checkpoint={checkpoint}", f"data.train=[{inputs.data}]", "data.sequence_length=48")
    return ["--recipe", "demo_adapt", "--output", str(run_dir), *settings]
