"""Families besides OPT through the whole of `recipes`, trained at two layouts from a converted checkpoint, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Inputs
from tests.conversion.tiny_families import save_tiny_model
from tests.processes import call_command
from tests.recipes.tiny_runs import export, train_on_ranks

SHAPE = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--num-key-value-heads", "2", "--max-positions", "64"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral3"])
def test_a_family_is_planned_trained_and_exported(family: str, inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The samples are longer than Ministral 3's attention temperature stays 1, and its vision tower comes back as it was."""
    hf, nemo = tmp_path / "hf", tmp_path / "nemo"
    if family == "llama":
        call_command("conversion.new_model", "--model-type", "llama", *SHAPE, "--tokenizer", inputs.tokenizer, "--output", hf)
    else:
        vocab_size = json.loads((inputs.hf / "config.json").read_text())["vocab_size"]
        save_tiny_model(family, hf, tokenizer_dir=inputs.tokenizer, vocab_size=vocab_size)
    call_command("conversion.hf_to_nemo", "--input", hf, "--output", nemo)
    recipe = ["--recipe", "demo_adapt", f"model.checkpoint={nemo}", f"data.train=[{inputs.data}]", "data.sequence_length=48"]
    recipe += ["schedule.max_steps=4", "schedule.warmup_steps=1", "run.checkpoint_every_steps=4", "run.log_every_steps=1"]

    capsys.readouterr()
    call_command("recipes.plan", "--json", *recipe)
    plan = json.loads(capsys.readouterr().out)
    before = load_file(hf / "model.safetensors")
    beside = {name for name in before if name.startswith(("vision_tower.", "multi_modal_projector."))}
    assert plan["model"]["family"] == family
    assert plan["model"]["parameters"] == sum(tensor.numel() for name, tensor in before.items() if name not in beside)

    losses = {}
    for layout, overrides in {"tensor": (), "pipeline": ("parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=2")}.items():
        losses[layout] = [record["loss"] for record in train_on_ranks(tmp_path / layout, *recipe, *overrides) if "loss" in record]
    assert len(losses["tensor"]) == 4
    assert losses["pipeline"] == pytest.approx(losses["tensor"], abs=1e-5)

    trained = tmp_path / "tensor/checkpoints/step_0000004"
    assert {path.name for path in (trained / "context").iterdir()} == {"model.json", "io.json", "model.yaml", "hf"}
    after = export(trained, tmp_path / "back")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].shape == tensor.shape
        assert torch.equal(after[name], tensor) == (name in beside), name
        assert (after[name] - tensor).abs().max() < 0.02, name  # four steps of at most 0.001, not another tensor's values
    assert (tmp_path / "back/config.json").read_bytes() == (hf / "config.json").read_bytes()
