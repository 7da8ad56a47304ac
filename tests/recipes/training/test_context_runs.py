"""Runs whose samples are cut among ranks, and checkpoints that other layouts go on from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Inputs
from tests.processes import call_command
from tests.recipes.watched_runs import Runs

# All that goes by places in whole samples: documents, a second head, validation; frozen parameters and the distributed optimizer beside it.
SETTINGS = ("data.document_mask=true", "+objective=two_tokens", "run.validate_every_steps=3", "schedule.micro_batch_size=4")
CUT = "parallel.context_parallel_size=2"
LAYOUT_TOLERANCE = 1e-5  # layouts sum in another order, so float32 losses differ in the last digits


@pytest.fixture(scope="module")
def whole(runs: Runs) -> list[dict[str, Any]]:
    """Records of a run at tensor parallel 2, whose ranks see whole samples."""
    runs.train("whole", *SETTINGS)
    return runs.records("whole")


def _require_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=LAYOUT_TOLERANCE)


@pytest.mark.slow
def test_a_run_over_cut_samples_goes_on_over_whole_ones(runs: Runs, whole: list[dict[str, Any]]) -> None:
    """Losses of both heads, norms of gradients and of new rows, and validation are those of whole samples all along."""
    assert (
        {"first_head_loss", "gradient_norm", "new_row_norm"} <= set(whole[1])
        and "validation_loss_sl" in whole[0]
        and "validation_loss_sl" in whole[4]
    )
    with pytest.raises(AssertionError, match=r"rank . failed"):
        runs.train("cut", *SETTINGS, CUT, tensor_parallel_size=1, at_step=["crash", 4])
    runs.train("cut", *SETTINGS)
    _require_same(runs.records("cut"), whole)


@pytest.mark.long
def test_a_run_over_whole_samples_goes_on_over_cut_ones(runs: Runs, whole: list[dict[str, Any]]) -> None:
    *_, last = runs.checkpoints("whole")
    shutil.copytree(runs.directory / "whole", runs.directory / "half")
    shutil.rmtree(runs.directory / "half" / "checkpoints" / last)
    runs.train("half", *SETTINGS, CUT, tensor_parallel_size=1)
    _require_same(runs.records("half"), whole)


@pytest.fixture
def long_inputs(inputs: Inputs, tmp_path: Path) -> Inputs:
    """A model with windows and grouped heads that knows 4,096 positions."""
    shape = ("--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--num-key-value-heads", 2, "--max-positions", 4096)
    hf, checkpoint = tmp_path / "hf", tmp_path / "nemo"
    call_command("conversion.new_model", "--model-type", "mistral", *shape, "--tokenizer", inputs.tokenizer, "--output", hf)
    call_command("conversion.hf_to_nemo", "--input", hf, "--output", checkpoint)
    return replace(inputs, hf=hf, checkpoint=checkpoint, held_out=inputs.data)


@pytest.mark.long
def test_all_that_long_samples_ask_for_goes_together_at_4096_tokens(long_inputs: Inputs, tmp_path: Path) -> None:
    """Four ranks: tensor, sequence and context parallel, documents, batches that grow, layers computed again; killed, and resumed at another layout."""
    long = ("data.sequence_length=4096", "schedule.global_batch_size=4", "schedule.micro_batch_size=1", "run.validation_batches=1")
    ramp = ("+schedule.ramp_up.start_batch_size=2", "+schedule.ramp_up.batch_size_increment=2", "+schedule.ramp_up.samples=6")
    together = ("parallel.devices_per_node=4", CUT, "parallel.sequence_parallel=true", "+recomputation.granularity=full")
    settings = ("data.document_mask=true", *long, *ramp)
    runs = Runs(long_inputs, tmp_path)
    runs.train("whole", *settings)
    with pytest.raises(AssertionError, match=r"rank . failed"):
        runs.train("together", *settings, *together, num_ranks=4, at_step=["crash", 4])
    stages = ("parallel.devices_per_node=4", CUT, "parallel.pipeline_parallel_size=2")
    runs.train("together", *settings, *stages, num_ranks=4, tensor_parallel_size=1)
    _require_same(runs.records("together"), runs.records("whole"))
