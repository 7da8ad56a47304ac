"""Runs in which the documents of a sample do not see each other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoModelForCausalLM

from common.artifacts import read_manifest
from data_prep.megatron.index import PREFIX, TokenFile
from tests.conftest import Inputs
from tests.recipes.watched_runs import BATCH, SEQUENCE_LENGTH, Runs

MASK = ("data.document_mask=true", "run.validate_every_steps=1")
LAYOUT_TOLERANCE = 1e-5  # layouts sum in another order, so float32 losses differ in the last digits


@pytest.fixture(scope="module")
def whole(runs: Runs) -> dict[str, Any]:
    """An uninterrupted run at tensor parallel 2."""
    return runs.train("whole", *MASK)


@pytest.mark.long
def test_losses_are_the_same_over_a_pipeline(runs: Runs, whole: dict[str, Any]) -> None:
    """Whose stages all have to know where documents end."""
    options = ("parallel.pipeline_parallel_size=2", "schedule.micro_batch_size=4")
    runs.train("pipeline", *MASK, *options, tensor_parallel_size=1)
    expected, found = (runs.records(name) for name in ("whole", "pipeline"))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=LAYOUT_TOLERANCE)


@pytest.mark.slow
def test_validation_is_the_loss_of_the_reference_on_each_document_alone(runs: Runs, whole: dict[str, Any], inputs: Inputs) -> None:
    """The first step has the rate 0, so what is measured behind it is the model that the run started from."""
    manifest = read_manifest(inputs.held_out)
    assert manifest is not None
    tokens, end_of_text = TokenFile(inputs.held_out / PREFIX), manifest.facts["eos_token_id"]
    model = AutoModelForCausalLM.from_pretrained(inputs.hf, dtype=torch.float32).eval()
    alone, together = [], []
    for start in range(0, 2 * BATCH * SEQUENCE_LENGTH, SEQUENCE_LENGTH):
        text = torch.from_numpy(tokens.slice(start, start + SEQUENCE_LENGTH + 1).astype(np.int64))
        ends = [0, *(np.flatnonzero(text[:-1] == end_of_text) + 1).tolist(), SEQUENCE_LENGTH]
        for first, end in pairwise(ends):
            if first < end:
                document = text[first : end + 1]
                losses = _losses(model, document)
                alone.append(losses[:-1] if document[-2] == end_of_text else losses)
        together.append(_losses(model, text))
    assert len(alone) > len(together) + 5, "there are ends of documents in the samples"
    [found, *_] = [record["validation_loss_sl"] for record in runs.records("whole") if "validation_loss_sl" in record]
    assert found == pytest.approx(float(torch.cat(alone).mean()), rel=1e-5)
    assert found != pytest.approx(float(torch.cat(together).mean()), rel=1e-5)


def _losses(model: Any, text: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return F.cross_entropy(model(text[None, :-1]).logits[0], text[1:], reduction="none")


def test_positions_are_those_that_megatron_would_reset() -> None:
    """Ends of text at the beginning, at the end, one behind the other."""
    from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids

    from recipes.training.passes import positions_in_documents  # here, as it imports the engine and collecting the tests needs none

    tokens = torch.tensor([[2, 5, 6, 2, 2, 7, 8, 9], [5, 6, 7, 8, 9, 5, 6, 2], [5, 2, 5, 2, 5, 2, 5, 6]])
    expected = torch.stack([_get_ltor_masks_and_position_ids(row, 2, True, True, True, False)[2] for row in tokens])
    assert torch.equal(positions_in_documents(tokens, 2), expected)
