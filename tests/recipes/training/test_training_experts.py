"""Experts through the whole of `recipes`: Qwen 3's and gpt-oss's, planned, trained at several layouts, resumed at another, and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conversion import hf_to_nemo
from tests.conftest import Inputs
from tests.conversion.tiny_families import save_tiny_model
from tests.gloo import run_on_gloo
from tests.processes import call_command
from tests.recipes.tiny_runs import export, train_on_ranks

ONE_BY_ONE = "parallel.tensor_parallel_size=1"
CUT = ("parallel.tensor_parallel_size=2", "parallel.sequence_parallel=true")
# Summed in another order; every micro batch has a loss of its own for how busy its experts are, so they have to be the same ones.
LAYOUT_TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=["qwen3_moe", "gpt_oss"])
def checkpoint(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    directory = tmp_path_factory.mktemp("experts")
    vocab_size = json.loads((inputs.hf / "config.json").read_text())["vocab_size"]
    save_tiny_model(request.param, directory / "hf", tokenizer_dir=inputs.tokenizer, vocab_size=vocab_size)
    hf_to_nemo.convert(directory / "hf", directory / "nemo")
    return directory / "nemo"


def settings(checkpoint: Path, inputs: Inputs) -> list[str]:
    return [
        *("--recipe", "demo_adapt", f"model.checkpoint={checkpoint}", f"data.train=[{inputs.data}]", "data.sequence_length=48"),
        *("schedule.max_steps=4", "schedule.warmup_steps=1", "schedule.micro_batch_size=4", "run.log_every_steps=1"),
        *("run.checkpoint_every_steps=2", "model.expert_balance=0.1"),
    ]


def logged(records: list[dict[str, Any]]) -> list[list[float]]:
    keys = ("loss", "expert_balance", "gradient_norm")
    return [[record[key] for key in keys] for record in records if "loss" in record]


@pytest.mark.slow
def test_experts_are_planned_trained_and_exported(
    checkpoint: Path, inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = settings(checkpoint, inputs)
    before = load_file(checkpoint.parent / "hf/model.safetensors")
    call_command("recipes.plan", "--json", *recipe, ONE_BY_ONE)
    plan = json.loads(capsys.readouterr().out)
    family = json.loads((checkpoint / "context/model.json").read_text())["family"]
    assert plan["model"]["family"] == family
    assert plan["model"]["parameters"] == sum(tensor.numel() for tensor in before.values())

    documents = ("data.document_mask=true",)  # with which losses are means over all tokens that count
    layouts: dict[str, tuple[str, ...]] = {
        "replicas": (ONE_BY_ONE,),
        "tensor": CUT,
        "stages": (ONE_BY_ONE, "parallel.pipeline_parallel_size=2"),
        "pieces": (ONE_BY_ONE, "parallel.context_parallel_size=2"),
        "again": (*CUT, "+recomputation={granularity:selective,modules:[mlp]}"),
        "documents, replicas": (ONE_BY_ONE, *documents),
        "documents, tensor": (*CUT, *documents),
        "documents, pieces": (ONE_BY_ONE, "parallel.context_parallel_size=2", *documents),
    }
    if family == "gpt_oss":  # whose sinks have no gradient over pieces of samples
        layouts = {name: overrides for name, overrides in layouts.items() if "pieces" not in name}
        layouts["whole optimizer, tensor"] = (*CUT, "parallel.distributed_optimizer=false")
    found = {name: logged(train_on_ranks(tmp_path / name, *recipe, *overrides)) for name, overrides in layouts.items()}
    assert len(found["replicas"]) == 4
    for loss, balance, _ in found["replicas"]:
        assert loss > 1 and 1 < balance < 2
    for name, records in found.items():
        for record, expected in zip(records, found["documents, replicas" if "documents" in name else "replicas"], strict=True):
            assert record == pytest.approx(expected, rel=LAYOUT_TOLERANCE), name

    trained = tmp_path / "tensor/checkpoints/step_0000004"
    after = export(trained, tmp_path / "back")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].shape == tensor.shape
        assert not torch.equal(after[name], tensor), name
        assert (after[name] - tensor).abs().max() < 0.02, name  # four steps of at most 0.001, not another tensor's values


@pytest.mark.slow
def test_with_documents_the_balance_weighs_what_the_recipe_says(checkpoint: Path, inputs: Inputs, tmp_path: Path) -> None:
    """Also where some tokens do not count; of one rank and one micro batch, so that a step adds weight x balance x layers to the mean loss."""
    [found] = run_on_gloo(
        "tests.recipes.expert_ranks:train",
        world_size=1,
        directory=tmp_path / "logs",
        initialize=False,
        output=str(tmp_path / "run"),
        tensor_parallel_size=1,
        overrides=[
            *settings(checkpoint, inputs)[2:],
            *("data.document_mask=true", "parallel.devices_per_node=1", "schedule.global_batch_size=4"),
        ],
    )
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    num_layers = json.loads((checkpoint / "context/model.json").read_text())["config"]["num_layers"]
    expected = [0.1 * record["expert_balance"] * num_layers for record in records if "loss" in record]
    assert found["reduced"] == 0, "there is one copy of the weights"
    assert found["balance_losses"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_run_of_experts_goes_on_at_another_layout(checkpoint: Path, inputs: Inputs, tmp_path: Path) -> None:
    """From its second step, with the state of the optimizer: of experts that ranks had parts of, and now have as a whole."""
    recipe = settings(checkpoint, inputs)
    whole = logged(train_on_ranks(tmp_path / "whole", *recipe, *CUT))
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed/checkpoints/step_0000004")
    resumed = logged(train_on_ranks(tmp_path / "resumed", *recipe, ONE_BY_ONE))
    assert len(whole) == len(resumed) == 4
    for record, expected in zip(resumed, whole):
        assert record == pytest.approx(expected, rel=LAYOUT_TOLERANCE)


@pytest.mark.long
def test_experts_that_stay_as_they_are(checkpoint: Path, inputs: Inputs, tmp_path: Path) -> None:
    """By the names of the checkpoint, in which all experts of a layer are one tensor; for the whole run and for its first steps."""
    before = load_file(checkpoint.parent / "hf/model.safetensors")
    rules = "freeze=[{frozen:['*.experts.*']},{frozen:['*.router.*'],until_step:2}]"
    train_on_ranks(tmp_path / "run", *settings(checkpoint, inputs), *CUT, rules)
    for steps, held in ((2, ("mlp.experts.", "mlp.gate.", "mlp.router.")), (4, ("mlp.experts.",))):
        after = export(tmp_path / f"run/checkpoints/step_{steps:07d}", tmp_path / f"back_{steps}")
        for name, tensor in before.items():
            assert torch.equal(after[name], tensor) == any(part in name for part in held), name


@pytest.mark.slow
def test_a_training_knows_nothing_of_another_ones_experts(tmp_path: Path) -> None:
    """Whose balance would be logged, and reduced over process groups that are gone: several recipes are rehearsed in one process."""
    from lightning.pytorch import Trainer  # here, since collecting the tests needs no engine
    from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker, save_to_aux_losses_tracker

    from recipes.training.loggers import MetricsFile
    from recipes.training.metrics import Metrics, Rates, expert_balance

    save_to_aux_losses_tracker("load_balancing_loss", torch.ones(()), 1, 2)
    assert get_moe_layer_wise_logging_tracker()
    trainer = Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path)
    trainer.datamodule = SimpleNamespace(_train_ds=[])  # type: ignore[attr-defined]
    rates = Rates(8, (), 1.0, {}, 1.0, 1, None)
    file = MetricsFile(tmp_path / "metrics.jsonl", may_write=lambda: True)
    Metrics(file, every_steps=1, max_steps=1, rates=rates, new_rows=range(0)).on_train_start(trainer, None)  # type: ignore[arg-type]
    assert expert_balance(trainer, num_samples=8) is None
