"""Exported recipes in NeMo AutoModel's own loop on a CPU; needs the environment of `make test-automodel`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import Inputs
from tests.conversion.new_families import config_of
from tests.processes import ROOT, call_command, free_port
from tests.recipes.tiny_runs import export, train_on_ranks

if "SCION_AUTOMODEL" not in os.environ:
    pytest.skip("NeMo AutoModel is not installed here; run `make test-automodel`", allow_module_level=True)

AUTOMODEL = Path(os.environ["SCION_AUTOMODEL"])  # its Python
SHAPE = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--num-key-value-heads", "2", "--max-positions", "64"]
STEPS, TIMEOUT_SECONDS = 10, 900
TOLERANCE = 1e-4  # another library's layers and another order of sums, in float32
pytestmark = pytest.mark.long


def options(checkpoint: Path, inputs: Inputs) -> list[str]:
    """A run with two data sets and their shares, a frozen layer and tables with a rate of their own."""
    return [
        *("--recipe", "demo_adapt", f"model.checkpoint={checkpoint}", f"data.train=[{inputs.data},{inputs.held_out}]"),
        *("data.blend={data: 3, held_out: 1}", f"data.validation={inputs.held_out}", "data.sequence_length=48"),
        *(f"schedule.max_steps={STEPS}", "schedule.warmup_steps=2", f"run.checkpoint_every_steps={STEPS}", "run.log_every_steps=1"),
        *("schedule.embedding_learning_rate=2e-3", "schedule.embedding_min_learning_rate=2e-4", "schedule.embedding_weight_decay=0.0"),
        "freeze=[{frozen: [bottom_1_layers]}]",
    ]


def in_automodel(*words: str | Path) -> None:
    """Run a module of this project, or a script, with AutoModel's Python."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": f"{AUTOMODEL.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [AUTOMODEL, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-4000:]}"


def train(folder: Path) -> list[dict[str, Any]]:
    """What AutoModel writes of each step of an export."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "--master-port", str(free_port())]
    in_automodel(*launcher, "tests/recipes/automodel_on_cpu.py", folder / "config.yaml")
    return [json.loads(line) for line in (folder / "run/training.jsonl").read_text().splitlines()]


def last_folder(export: Path) -> Path:
    """The last checkpoint as a Hugging Face folder."""
    return export / "run/LATEST/model/consolidated"


def trained_weights(export: Path) -> Mapping[str, torch.Tensor]:
    """Of the last checkpoint."""
    return {name: tensor for path in last_folder(export).glob("*.safetensors") for name, tensor in load_file(path).items()}


def test_losses_and_weights_are_nemo_s_over_ten_steps(inputs: Inputs, tmp_path: Path) -> None:
    """Samples, shares, schedule, rates of their own, freezing: all as here, of a Llama that AutoModel reads from its Hugging Face folder."""
    call_command(
        "conversion.new_model", "--model-type", "llama", *SHAPE, "--tokenizer", inputs.tokenizer, "--seed", 3, "--output", tmp_path / "hf"
    )
    call_command("conversion.hf_to_nemo", "--input", tmp_path / "hf", "--output", tmp_path / "nemo")
    records = {
        record["step"]: record for record in train_on_ranks(tmp_path / "run", *options(tmp_path / "nemo", inputs)) if "loss" in record
    }
    call_command("recipes.export", *options(tmp_path / "hf", inputs), "--to", "automodel", "--output", tmp_path / "export")
    steps = train(tmp_path / "export")
    assert len(steps) == len(records) == STEPS
    for number, step in enumerate(steps, start=1):
        assert step["loss"] == pytest.approx(records[number]["loss"], abs=TOLERANCE), number
        assert step["grad_norm"] == pytest.approx(records[number]["gradient_norm"], abs=1e-3), number
    before, found = load_file(tmp_path / "hf/model.safetensors"), trained_weights(tmp_path / "export")
    expected = export(tmp_path / f"run/checkpoints/step_{STEPS:07d}", tmp_path / "nemo_hf")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 1e-4, name
        assert torch.equal(found[name], before[name]) == (".layers.0." in name), name


@pytest.mark.parametrize("name", ["qwen3_5_text", "granite4"])
def test_a_family_that_the_engine_does_not_have_is_trained_and_evaluated(name: str, inputs: Inputs, tmp_path: Path) -> None:
    """AutoModel saves the experts of families that it has no class for under the names of transformers' class, not under those of the files."""
    rows = json.loads((inputs.hf / "config.json").read_text())["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config_of(name, rows)))
    in_automodel("-m", "tests.recipes.new_model_for_automodel", tmp_path / "config.json", inputs.tokenizer, tmp_path / "hf")
    words = [*options(tmp_path / "hf", inputs), "model.expert_balance=0"]
    call_command("recipes.export", *words, "--to", "automodel", "--output", tmp_path / "export")
    losses = [step["loss"] for step in train(tmp_path / "export")]
    assert len(losses) == STEPS and losses[-1] < losses[0] - 0.03
    before, found = load_file(tmp_path / "hf/model.safetensors"), trained_weights(tmp_path / "export")
    assert all("block_sparse_moe" in key for key in found.keys() ^ before.keys())
    for key in found.keys() & before.keys():
        assert torch.equal(found[key], before[key]) == (".layers.0." in key), key
    (tmp_path / "held_out.txt").write_text("Dober dan. Danes je lep dan.\nČez drn in strn.\n")
    evaluate: list[str | Path] = ["-m", "eval.harness", "--model", tmp_path / "hf", last_folder(tmp_path / "export")]
    in_automodel(*evaluate, "--text", f"sl={tmp_path / 'held_out.txt'}", "--output", tmp_path / "eval")
    scores = [
        json.loads((tmp_path / "eval" / model / "result.json").read_text())["texts"]["sl"]["bits_per_byte"]
        for model in ("hf", "consolidated")
    ]
    assert scores[1] < scores[0]
