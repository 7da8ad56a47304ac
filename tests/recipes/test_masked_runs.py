"""Masked training of a tiny RoBERTa in the engine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recipes.checks import check_run, read_inputs
from recipes.compose import compose_recipe
from tests.conftest import Inputs
from tests.processes import call_command
from tests.recipes.tiny_runs import export, train_tiny


def test_factors_of_an_encoder(encoder: Inputs, tmp_path: Path) -> None:
    """By the paper's recipe: exported before the first change they make the transfer's table, and later one of their rank."""
    hf, nemo, run = tmp_path / "hf", tmp_path / "nemo", tmp_path / "run"
    options = (
        "--source",
        encoder.hf,
        "--tokenizer",
        encoder.tokenizer,
        "--method",
        "mean",
        "--output-layer",
        "tied",
        "--factorised-size",
        6,
    )
    call_command("conversion.transfer", *options, "--output", hf)
    call_command("conversion.hf_to_nemo", "--input", hf, "--output", nemo)
    overrides = ["schedule.warmup_steps=1", "schedule.learning_rate=1e-2", "schedule.max_steps=4", "run.checkpoint_every_steps=1"]
    overrides += [f"model.checkpoint={nemo}", f"model.factors={hf / 'factors.safetensors'}"]
    losses = [record["loss"] for record in train_tiny("ofa/mono", run, encoder, encoder.data, *overrides) if "loss" in record]
    assert all(map(math.isfinite, losses))
    table = "roberta.embeddings.word_embeddings.weight"
    start = load_file(hf / "model.safetensors")
    first, last = (export(run / f"checkpoints/step_000000{step}", tmp_path / f"back_{step}") for step in (1, 4))
    assert start.keys() == first.keys() == last.keys()
    assert (first[table] - start[table]).abs().max() < 1e-6
    assert (last[table] - start[table]).abs().max() > 1e-3
    assert torch.linalg.matrix_rank(last[table], rtol=1e-5) == 6
    assert not torch.equal(last["lm_head.bias"], start["lm_head.bias"])


def refusal(inputs: Inputs, *overrides: str, checkpoint: Path | None = None) -> str:
    settings = [f"model.checkpoint={checkpoint or inputs.checkpoint}", f"data.train=[{inputs.data}]", "data.sequence_length=48"]
    recipe = compose_recipe("demo_adapt", [*settings, *overrides])
    with pytest.raises(ValueError) as caught:
        check_run(recipe, read_inputs(recipe))
    return str(caught.value).removeprefix(f"recipe {recipe.name} cannot run: ")


def test_masks_of_another_objective(inputs: Inputs) -> None:
    sentence = "masking is given, but the objective next_token hides no tokens; set objective=masked, or leave it out"
    assert refusal(inputs, "+masking.share=0.2") == sentence
