"""Samples that are cut among ranks: losses and gradients are those of whole samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from conversion.families import FAMILIES
from tests.conversion.tiny_families import tiny_model
from tests.gloo import run_on_gloo
from tests.nemo_patches.test_documents import models

TOLERANCE = 1e-5  # in 32 bit, of losses of about 6 and of gradients by the largest of their tensor


def require_same_as_whole(found: dict[str, dict[str, float]]) -> None:
    """Compare what a rank has seen."""
    for case, values in found.items():
        assert values["number of gradients"] > 5 and values["spread"] > 0.05, case
        assert values["tokens"] == 1 / (4 if "CP 4" in case else 2), case
        assert values["losses"] < TOLERANCE, (case, values)
        assert values["gradients"] < TOLERANCE, (case, values)


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_whole_samples(tmp_path: Path) -> None:
    """Two and four ranks, also beside tensor and sequence parallelism: learned and rotary positions, windows, capped scores, documents, adapters, two tokens."""
    cases = {name: model for name, model in models().items() if name not in ("qwen2", "mistral")}  # whose features others have too
    gemma3 = tiny_model("gemma3_text").config.to_dict()
    cases["gemma3_text"] = FAMILIES["gemma3_text"].megatron_config(gemma3, tied=True, source="Gemma 3")  # two rotations
    function, layouts = "tests.nemo_patches.context_ranks:same_as_whole", [[1, 4], [1, 2], [2, 2]]
    ranks = run_on_gloo(function, world_size=4, directory=tmp_path, models=cases, layouts=layouts)
    for found in ranks:
        assert len(found) == len(cases) * 2 * len(layouts)
        require_same_as_whole(found)


@pytest.mark.long
def test_no_rank_has_a_number_for_each_pair_of_tokens_and_dropout_is_drawn_again(tmp_path: Path) -> None:
    """Forward and backward, with windows and capped scores, in blocks of queries that are computed again for the backward pass."""
    function = "tests.nemo_patches.context_ranks:scores_of_pieces"
    for seen in run_on_gloo(function, world_size=4, directory=tmp_path):
        for name, found in seen.items():
            assert found["output"] < 1e-5, name
            assert found["gradients"] < 1e-4, name
            assert found["largest"] < 0.1, name
