"""What the backward pass computes again: the losses, gradients and random states of a step have the bits that they have without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gloo import run_on_gloo
from tests.nemo_patches.test_sequence_parallel import families

FUNCTION = "tests.nemo_patches.sequence_ranks:with_and_without_recomputation"
LAYERS = ["each layer", "two layers", "the first layer"]
PARTS = {
    "attention": {"attention"},
    "feed-forward part": {"feed-forward part"},
    "all parts": {"attention", "feed-forward part"},
}
MICRO_BATCHES = 2


def with_dropout() -> dict[str, dict[str, Any]]:
    """Every family with dropout, and what is particular to runs of this project."""
    plain = families()
    tied = {name: {**plain[name], "share_embeddings_and_output_weights": True} for name in ("opt", "llama")}
    return {f"{name}, dropout": model for name, model in plain.items()} | {
        "opt, dropout, two tokens, documents": plain["opt"],
        "gemma2, dropout, two tokens, adapters": plain["gemma2"],
        "opt, dropout, frozen table": plain["opt"],
        "qwen3, dropout, adapters, documents": plain["qwen3"],
        "gemma3_text, dropout, documents": plain["gemma3_text"],
        "llama, dropout, factorised": tied["llama"],
    }


def require_same_bits(found: dict[str, dict[str, Any]]) -> None:
    for case, values in found.items():
        assert values["losses"] and values["gradients"] and values["random state"], (case, values)
        assert values["number of gradients"] == values["number of parameters that train"], (case, values)
        again = PARTS.get(case.split(", TP")[0].rpartition(", ")[2], set(values["computed"]))
        expected = {part: MICRO_BATCHES * (2 if part in again else 1) for part in values["computed"]}
        assert values["computed"] == expected, (case, values)
        assert set(values["without"].values()) == {MICRO_BATCHES}


@pytest.mark.slow
def test_a_step_has_the_same_bits_in_every_family(tmp_path: Path) -> None:
    """With dropout; and adapters, two heads, documents, factorised and frozen tables."""
    cases = with_dropout()
    ways = ["the first layer", "all parts"]
    [found] = run_on_gloo(FUNCTION, world_size=1, directory=tmp_path, models=cases, layouts=[[1, 1]], ways=ways, sequence_parallel=False)
    assert len(found) == len(cases) * len(ways)
    require_same_bits(found)


@pytest.mark.long
def test_a_step_has_the_same_bits_over_ranks_whatever_is_computed_again(tmp_path: Path) -> None:
    """At tensor parallel size 2 with whole sequences and with parts, and over two stages of one layer each."""
    cases = {
        name: model
        for name, model in with_dropout().items()
        if name in ("opt, dropout, two tokens, documents", "gemma2, dropout, two tokens, adapters")
    }
    for layout, ways, cuts in (
        ([2, 1], [*LAYERS, *PARTS], True),
        ([2, 1], ["each layer", "all parts"], False),
        ([1, 2], ["each layer", "all parts"], False),
    ):
        place = tmp_path / f"{layout}_{cuts}"
        ranks = run_on_gloo(FUNCTION, world_size=2, directory=place, models=cases, layouts=[layout], ways=ways, sequence_parallel=cuts)
        for found in ranks:
            assert len(found) == len(cases) * len(ways)
            require_same_bits(found)
