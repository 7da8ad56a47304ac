"""Checkpoints of this project in layers of TransformerEngine, as its stand-in builds, loads, saves and resumes them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from common.plain_files import read_json
from conversion import hf_to_nemo
from nemo_patches.stand_ins import VERSIONS
from tests.conftest import Inputs
from tests.conversion.tiny_families import save_tiny_model
from tests.gloo import run_on_gloo
from tests.nemo_patches.test_context_parallel import require_same_as_whole
from tests.nemo_patches.test_documents import models, require_same_as_alone
from tests.nemo_patches.test_recomputation import require_same_bits, with_dropout
from tests.nemo_patches.test_sequence_parallel import particular_models, require_same
from tests.recipes.watched_runs import Runs

FAMILIES = ("opt", "mistral", "gemma2", "qwen3", "olmo3", "apertus", "granite")
NEWEST = VERSIONS[-1]
IMAGE = f"{NEWEST}+apex"  # NVIDIA's images have both: gradients of weights are then added to what is accumulated by a kernel


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory, inputs: Inputs) -> list[str]:
    """Checkpoints of the families whose layers differ most."""
    base = tmp_path_factory.mktemp("families")
    for name in FAMILIES:
        save_tiny_model(name, base / "hf" / name, tokenizer_dir=inputs.tokenizer)
        hf_to_nemo.convert(base / "hf" / name, base / "nemo" / name)
    return [str(base / "nemo" / name) for name in FAMILIES]


def _logits(families: list[str], directory: Path, *, transformer_engine: str, world_size: int = 1) -> tuple[dict[str, Any], list[Any]]:
    output = directory / "logits.pt"
    found = run_on_gloo(
        "tests.nemo_patches.stand_in_ranks:logits",
        world_size=world_size,
        directory=directory,
        transformer_engine=transformer_engine,
        directories=families,
        output=str(output),
    )
    return found[0], torch.load(output)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_first_start_finds_all_that_transformer_engine_asks_for(families: list[str], version: str, tmp_path: Path) -> None:
    """Its norms have extra state since version 2; the logits are those of the layers without it, at tensor parallel 2 too."""
    kinds, expected = _logits(families, tmp_path / "without", transformer_engine="")
    assert kinds["uses"] is kinds["stands in"] is False
    for world_size in (1, 2):
        kinds, found = _logits(families, tmp_path / str(world_size), transformer_engine=version, world_size=world_size)
        assert kinds["uses"] is kinds["stands in"] is True
        for name, mine, theirs in zip(FAMILIES, found, expected, strict=True):
            first = "TEColumnParallelLinear" if name == "olmo3" else "TELayerNormColumnParallelLinear"
            assert first in kinds[name] and "FusedLayerNorm" not in kinds[name]
            assert "module.decoder.final_layernorm._extra_state" in kinds[f"{name} extra"]
            assert theirs.std() > 0.1
            assert (mine - theirs).abs().max() < 2e-5, name
    assert "module.decoder.layers.0.self_attention.q_layernorm._extra_state" in kinds["qwen3 extra"]
    assert "module.decoder.layers.0.mlp.linear_fc2.post_layernorm._extra_state" in kinds["gemma2 extra"]


@pytest.mark.slow
def test_documents_are_computed_with_their_lengths(tmp_path: Path) -> None:
    """Not by a mask, which TransformerEngine's kernels pass over; Gemma 2's capped scores are ours."""
    [found] = run_on_gloo(
        "tests.nemo_patches.document_ranks:same_as_alone",
        world_size=1,
        directory=tmp_path,
        transformer_engine=NEWEST,
        models={name: model for name, model in models().items() if name in ("opt", "mistral", "gemma2", "qwen3")},
        layouts=[[1, 1]],
    )
    require_same_as_alone(found)


@pytest.mark.long
def test_samples_are_cut_among_ranks_by_its_own_exchange(tmp_path: Path) -> None:
    """Of whole samples, with a window by gathering; of documents its kernels get the gathered keys with two kinds of lengths."""
    ranks = run_on_gloo(
        "tests.nemo_patches.context_ranks:same_as_whole",
        world_size=2,
        directory=tmp_path,
        transformer_engine=NEWEST,
        models={name: model for name, model in models().items() if name in ("opt, two tokens", "mistral", "gemma2")},
        layouts=[[1, 2]],
    )
    for found in ranks:
        assert len(found) == 3 * 2
        require_same_as_whole(found)


@pytest.mark.long
def test_parts_of_sequences_and_what_is_computed_again_give_what_whole_ones_give(tmp_path: Path) -> None:
    """Its norms and layers cut along the sequence, its own recomputation with its own tracker of random states: what Megatron's give."""
    sequence = "tests.nemo_patches.sequence_ranks:with_and_without_sequence_parallelism"
    cases = {name: model for name, model in particular_models().items() if name in ("opt, two tokens, tied", "gemma2", "qwen3")}
    for found in run_on_gloo(sequence, world_size=2, directory=tmp_path / "cut", transformer_engine=NEWEST, models=cases, layouts=[[2, 1]]):
        assert len(found) == len(cases)
        require_same(found)
    recomputation = "tests.nemo_patches.sequence_ranks:with_and_without_recomputation"
    cases = {name: model for name, model in with_dropout().items() if name in ("opt, dropout", "gemma2, dropout")}
    ways = ["each layer", "all parts"]
    settings: dict[str, Any] = {"models": cases, "layouts": [[2, 1]], "ways": ways, "sequence_parallel": True}
    for found in run_on_gloo(recomputation, world_size=2, directory=tmp_path / "again", transformer_engine=NEWEST, **settings):
        assert len(found) == len(cases) * len(ways)
        require_same_bits(found)


@pytest.fixture(scope="module")
def runs(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(inputs, tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
def test_what_was_saved_with_it_resumes_without_it_and_the_other_way_round(runs: Runs) -> None:
    """Weights, moments and the count of Adam's steps, which TransformerEngine keeps elsewhere; at another layout, too."""
    expected = runs.train("without")
    found = runs.train("with", transformer_engine=NEWEST)
    assert found["losses"] == pytest.approx(expected["losses"], abs=2e-5)
    assert found["gradient_norms"] == pytest.approx(expected["gradient_norms"], rel=1e-4)
    for before, after, version, size in (("without", "with", NEWEST, 2), ("with", "without", "", 2), ("with", "without", "", 1)):
        name = f"{before}, then {after}, at {size}"
        shutil.copytree(runs.directory / before, runs.directory / name)
        shutil.rmtree(runs.directory / name / "checkpoints/step_0000006")
        resumed = runs.train(name, transformer_engine=version, tensor_parallel_size=size)
        assert resumed["losses"] == pytest.approx(expected["losses"][3:], abs=2e-5), name
        if size == 2:  # at other sizes the ranks hold other parts twice
            assert resumed["moments"] == pytest.approx(expected["moments"][3:], rel=1e-3), name


@pytest.mark.long
def test_a_stock_nemo_with_it_loads_what_a_run_without_it_saved(runs: Runs, tmp_path: Path) -> None:
    """All that it asks for is there, the extra state of its norms too."""
    if not (runs.directory / "without").exists():
        runs.train("without")
    saved = [str(runs.directory / "without/checkpoints/step_0000006")]
    _, expected = _logits(saved, tmp_path / "without", transformer_engine="")
    kinds, found = _logits(saved, tmp_path / "with", transformer_engine=NEWEST)
    assert "module.decoder.final_layernorm._extra_state" in kinds["step_0000006 extra"]
    assert (found[0] - expected[0]).abs().max() < 2e-5


@pytest.mark.long
def test_adapters_on_opt_run_where_transformer_engine_is_installed_and_apex_is_not(runs: Runs) -> None:
    """Their layers are Megatron's own, with torch's norms, which know no persistent kernel; the final norm is TransformerEngine's."""
    adapters = ("+lora.rank=2", "+lora.alpha=4", "schedule.max_steps=2", "schedule.constant_steps=0")
    expected = runs.train("adapters", *adapters)
    found = runs.train("adapters with it", *adapters, transformer_engine=NEWEST)
    assert found["losses"] == pytest.approx(expected["losses"], abs=2e-5)


@pytest.mark.long
def test_experts_with_biases_are_trained_by_megatrons_layers_where_it_is_installed(inputs: Inputs, tmp_path: Path) -> None:
    """As everywhere: their optimizer and that of all else are fused ones, and resume from those without it."""
    vocab_size = read_json(inputs.hf / "config.json")["vocab_size"]
    save_tiny_model("gpt_oss", tmp_path / "hf", tokenizer_dir=inputs.tokenizer, vocab_size=vocab_size)
    hf_to_nemo.convert(tmp_path / "hf", tmp_path / "nemo")
    runs = Runs(replace(inputs, checkpoint=tmp_path / "nemo"), tmp_path)
    expected = runs.train("without", "parallel.sequence_parallel=true")
    found = runs.train("with", "parallel.sequence_parallel=true", transformer_engine=IMAGE)
    assert found["losses"] == pytest.approx(expected["losses"], abs=2e-5)
    assert found["gradient_norms"] == pytest.approx(expected["gradient_norms"], rel=1e-4)
    shutil.rmtree(tmp_path / "without/checkpoints/step_0000006")
    resumed = runs.train("without", "parallel.sequence_parallel=true", transformer_engine=IMAGE)
    assert resumed["losses"] == pytest.approx(expected["losses"][3:], abs=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("installed", ["+apex", NEWEST, IMAGE])
def test_a_run_is_the_same_with_apex_alone_and_with_either(runs: Runs, installed: str) -> None:
    """Over replicas, a tensor and a pipeline: losses, norms of gradients, Adam's moments."""
    settings = ("schedule.max_steps=3", "schedule.constant_steps=0")
    for size, overrides in ((1, ()), (2, ()), (1, ("parallel.pipeline_parallel_size=2",))):
        name = f"{size} {len(overrides)}"
        expected = runs.train(f"{installed} plain {name}", *settings, *overrides, tensor_parallel_size=size)
        found = runs.train(f"{installed} {name}", *settings, *overrides, tensor_parallel_size=size, transformer_engine=installed)
        assert found["losses"] == pytest.approx(expected["losses"], abs=2e-5)
        assert found["gradient_norms"] == pytest.approx(expected["gradient_norms"], rel=1e-4)
        assert found["moments"] == pytest.approx(expected["moments"], rel=1e-3)
