"""The tiny forms of published runs, trained on two processes: one for each behaviour; `test_all_tiny.py` has all of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from common.plain_files import read_json
from conversion import verify
from conversion.formats.dist_checkpoint import read_dist_checkpoint
from tests.conftest import VOCAB_SIZE, Inputs
from tests.processes import call_command
from tests.recipes.tiny_runs import export, train_tiny

# Layouts sum in another order, so float32 losses differ in the last digits.
LAYOUT_TOLERANCE = 2e-5
WITHOUT_DROPOUT = "model.hidden_dropout=0"  # of which each layout draws its own
TWO_STAGES = ("procedure=2_stage", "lora.dropout=0", "schedule.learning_rate=1e-2", "run.checkpoint_every_steps=1")
OTHER_LAYOUTS = {
    "data_parallel": ("parallel.tensor_parallel_size=1",),
    "pipeline": ("parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=2"),
}


def _losses(records: list[dict[str, Any]]) -> list[float]:
    return [record["loss"] for record in records if "loss" in record]


@pytest.fixture(scope="module")
def passes(inputs: Inputs, small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run in passes over the data, whose first is frozen, and its records."""
    run = tmp_path_factory.mktemp("passes") / "run"
    return run, train_tiny("gams/multi_epoch", run, inputs, small_data, WITHOUT_DROPOUT)


def test_multi_epoch(passes: tuple[Path, list[dict[str, Any]]], small_data: Path) -> None:
    run, records = passes
    tokens = json.loads((small_data / "scion.json").read_text())["facts"]["num_tokens"]
    steps = 4 * ((tokens - 1) // 48) // 8
    assert [record["step"] for record in records if "loss" in record] == list(range(1, steps + 1))
    recorded = json.loads((run / "recipe.json").read_text())
    assert recorded["schedule"]["max_steps"] == steps
    assert recorded["freeze"][0]["until_step"] == -(-((tokens - 1) // 48) // 8)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["data_parallel", "pipeline"])
def test_multi_epoch_is_the_same_at_other_layouts(
    layout: str, passes: tuple[Path, list[dict[str, Any]]], inputs: Inputs, small_data: Path, tmp_path: Path
) -> None:
    other = train_tiny("gams/multi_epoch", tmp_path / "run", inputs, small_data, WITHOUT_DROPOUT, *OTHER_LAYOUTS[layout])
    assert _losses(other) == pytest.approx(_losses(passes[1]), abs=LAYOUT_TOLERANCE)


@pytest.fixture(scope="module")
def two_stages(
    inputs: Inputs, untied_hf: Path, small_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    """A run of embeddings and both heads first, then adapters too, and its records; the checkpoint that it starts from is beside it."""
    base = tmp_path_factory.mktemp("two_stages")
    call_command("conversion.hf_to_nemo", "--input", untied_hf, "--output", base / "nemo")
    overrides = (*TWO_STAGES, f"model.checkpoint={base / 'nemo'}")
    return base / "run", train_tiny("low_resource/llama2", base / "run", inputs, small_data, *overrides)


def test_two_stages_of_adapters_with_two_tokens(two_stages: tuple[Path, list[dict[str, Any]]], untied_hf: Path, tmp_path: Path) -> None:
    """Exports have adapters in the weights, no second head, and the same names as ever."""
    run, records = two_stages
    losses = _losses(records)
    steps = len(losses)
    until = json.loads((run / "recipe.json").read_text())["freeze"][1]["until_step"]
    assert 1 < until < steps
    source = load_file(untied_hf / "model.safetensors")
    first, last = (export(run / f"checkpoints/step_{step:07d}", tmp_path / f"hf_{step}") for step in (until, steps))
    assert source.keys() == first.keys() == last.keys()
    told = [read_json(tmp_path / f"hf_{step}/scion.json")["facts"]["run"] for step in (until, steps)]
    assert told[0] == told[1] and (told[0]["id"], told[0]["output"]) == ((run / "run_id").read_text().splitlines()[0], "run")
    assert verify.main([str(tmp_path / f"hf_{steps}"), str(run / f"checkpoints/step_{steps:07d}")]) == 0
    for name, tensor in source.items():
        is_linear = any(part in name for part in ("proj.weight", "fc1.weight", "fc2.weight"))
        is_table = "embed_tokens" in name or "lm_head" in name
        assert torch.equal(first[name], tensor) != is_table, name
        assert torch.equal(last[name], first[name]) != (is_table or is_linear), name
    assert losses[-1] < losses[0]
    assert losses[0] > 1.9 * math.log(VOCAB_SIZE)  # the sum of two untrained heads' losses
    of_first_head = [record["first_head_loss"] for record in records if "loss" in record]
    assert of_first_head[0] == pytest.approx(losses[0] / 2, rel=0.05) and all(0 < a < b for a, b in zip(of_first_head, losses, strict=True))
    validated = [record["step"] for record in records if "validation_loss" in record]
    assert validated == list(range(steps + 1)), "held-out text that is given is measured, by default with every checkpoint"
    # The rate of the first step is 0, so its checkpoint has the head that the run started with: a copy of the first one, not of the table.
    began = {
        name: tensor.read() for name, tensor in read_dist_checkpoint(run / "checkpoints/step_0000001/weights", prefix="module.").items()
    }
    assert torch.equal(began["second_head.weight"][:VOCAB_SIZE], source["lm_head.weight"])


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["data_parallel", "pipeline"])
def test_two_stages_are_the_same_at_other_layouts(
    layout: str, two_stages: tuple[Path, list[dict[str, Any]]], inputs: Inputs, small_data: Path, tmp_path: Path
) -> None:
    run, records = two_stages
    overrides = (*TWO_STAGES, f"model.checkpoint={run.parent / 'nemo'}", *OTHER_LAYOUTS[layout])
    other = train_tiny("low_resource/llama2", tmp_path / "run", inputs, small_data, *overrides)
    for key in ("loss", "first_head_loss"):
        expected, found = ([record[key] for record in of if "loss" in record] for of in (records, other))
        assert found == pytest.approx(expected, abs=LAYOUT_TOLERANCE), key


@pytest.mark.slow
def test_factorised_embeddings(inputs: Inputs, factorised: Path, small_data: Path, tmp_path: Path) -> None:
    """The factors of a transfer are what is trained: exported before the first change they make its table, and later one of their rank."""
    hf, nemo, run = factorised / "hf", factorised / "nemo", tmp_path / "run"
    overrides = ("schedule.warmup_steps=1", "schedule.learning_rate=1e-2", "schedule.max_steps=4", "run.checkpoint_every_steps=1")
    train_tiny(
        "ofa/latent_400", run, inputs, small_data, *overrides, f"model.checkpoint={nemo}", f"model.factors={hf / 'factors.safetensors'}"
    )
    table = "model.decoder.embed_tokens.weight"
    start, first, last = (
        load_file(hf / "model.safetensors"),
        *(export(run / f"checkpoints/step_000000{n}", tmp_path / f"{n}") for n in (1, 4)),
    )
    assert (first[table] - start[table]).abs().max() < 1e-6
    assert (last[table] - start[table]).abs().max() > 1e-3
    assert torch.linalg.matrix_rank(last[table], rtol=1e-5) == 6
    assert start.keys() == last.keys()


@pytest.mark.slow
def test_adapters_tuned_on_answers(inputs: Inputs, pairs: Path, tmp_path: Path) -> None:
    """All that is trained are the adapters; what they learn shows in the loss of the answers."""
    records = train_tiny("gams/inz", tmp_path / "run", inputs, pairs, "schedule.learning_rate=3e-2", "schedule.warmup_steps=1")
    losses = _losses(records)
    assert len(losses) == 3 * 24 // 8
    tokens = json.loads((pairs / "scion.json").read_text())["facts"]["num_tokens"]
    assert [record["tokens"] for record in records if "loss" in record][2::3] == [tokens, 2 * tokens, 3 * tokens], "of text, a pass each"
    assert losses[-1] < losses[0] - 0.1  # a random body of two layers, of which the adapters alone move
    trained, source = export(tmp_path / "run/checkpoints/step_0000009", tmp_path / "hf"), load_file(inputs.hf / "model.safetensors")
    changed = {name for name, tensor in source.items() if not torch.equal(trained[name], tensor)}
    assert changed and all(any(part in name for part in ("proj.weight", "fc1.weight", "fc2.weight")) for name in changed)
