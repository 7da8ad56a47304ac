"""The engine's models beside the formulas: dropout, attention with windows and caps, padding without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gloo import run_on_gloo

RANKS = "tests.nemo_patches.engine_ranks"


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = run_on_gloo(f"{RANKS}:one_rank", world_size=1, directory=tmp_path_factory.mktemp("rank"))
    return found


def test_dropout_is_where_opt_has_it(one_rank: dict[str, Any]) -> None:
    assert one_rank["dropout"]["embedding"] == 0.0 and one_rank["dropout"]["residual"] > 0.1


def test_padding_rows_change_no_logit_no_loss_and_get_no_gradient(one_rank: dict[str, Any], tmp_path: Path) -> None:
    ranks = run_on_gloo(f"{RANKS}:padding", world_size=2, directory=tmp_path)
    for family in ("opt", "gemma2"):
        alone, split = one_rank["padding"][family], [found[family] for found in ranks]
        assert [alone["rows"], *(found["rows"] for found in split)] == [128, 64, 64]
        for found in (alone, *split):
            assert found["loss_difference"] < 1e-5
            assert found["padding_gradient"] == 0.0
            if family == "opt":  # Megatron draws the weights of a gated layer in another order at each layout
                assert found["logits"] == pytest.approx(alone["logits"], abs=1e-5)


def test_no_tensor_has_a_number_for_each_query_and_key(one_rank: dict[str, Any]) -> None:
    """With windows and capped scores, forward and backward, dropout included; and a kernel that takes a mask is given no groups."""
    for name, found in one_rank["blocks_of_attention"].items():
        assert found["output"] < 1e-5, name
        assert found["gradients"] < 1e-4, name
        assert found["largest"] < 0.5, name
        assert not found["mask of groups"], name


def test_sinks_where_samples_are_cut_among_ranks_are_refused(one_rank: dict[str, Any]) -> None:
    """Their gradient would be lost in silence."""
    assert one_rank["sinks_over_ranks"] == ("context_parallel_size is 2, but sinks get no gradient with context parallelism; expected 1")


def test_padding_of_an_encoder_is_a_mask_of_keys_alone(one_rank: dict[str, Any]) -> None:
    """Forward and backward, without a tensor of all pairs of tokens."""
    found = one_rank["padded_encoder"]
    assert found["output"] < 1e-5 and found["gradients"] < 1e-4 and found["largest"] < 0.5


def test_a_run_in_float32_keeps_the_precision_of_its_loss_gradient(one_rank: dict[str, Any]) -> None:
    assert not one_rank["loss_gradient"]["rounded"]


@pytest.mark.parametrize("family", ["opt", "gemma2"])
@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_two_tokens_are_predicted_in_training_alone(family: str, tensor_parallel_size: int, tmp_path: Path) -> None:
    """The second head starts as the first, so that both losses can be had from the same logits; caps and padding included.

    One that starts random has the same rows at every tensor parallel size.
    """
    function = "tests.nemo_patches.engine_ranks:two_token_losses"
    ranks = run_on_gloo(function, world_size=tensor_parallel_size, directory=tmp_path, family=family)
    found = ranks[0]
    drawn = np.array([value for rank in ranks for value in rank["drawn"]])
    blocks = [torch.randn(16, 32, generator=torch.Generator().manual_seed((5 << 32) + block)) for block in range(7)]
    np.testing.assert_allclose(drawn, torch.cat(blocks)[:102].flatten().numpy() * 0.02, rtol=1e-6)  # low-resource paper, Table 10
    assert found["trained"] == pytest.approx(found["by_hand"], abs=1e-5)
    assert found["evaluated"] == pytest.approx(found["first"], abs=1e-5)


def test_factors_are_the_table_that_they_make_up(tmp_path: Path) -> None:
    """In the embedding and in the head that is tied to it; their gradients are those of one process at any tensor parallel size."""
    function = "tests.nemo_patches.engine_ranks:factorised_table"
    one, two = (run_on_gloo(function, world_size=size, directory=tmp_path / str(size), family="opt")[0] for size in (1, 2))
    for found in (one, two):
        assert found["factorised"] == pytest.approx(found["whole"], abs=1e-5)
    assert two["factorised"] == pytest.approx(one["factorised"], abs=1e-5)
    assert two["squares"] == pytest.approx(one["squares"], rel=1e-4)
