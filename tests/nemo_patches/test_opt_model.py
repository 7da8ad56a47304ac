"""OPT in Megatron: ReLU with its bias, dropout only where OPT has it, causal attention, padding without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gloo import run_on_gloo

RANKS = "tests.nemo_patches.opt_ranks"


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = run_on_gloo(f"{RANKS}:one_rank", world_size=1, directory=tmp_path_factory.mktemp("rank"))
    return found


def test_relu_is_relu_with_its_bias(one_rank: dict[str, Any]) -> None:
    # The original code trained SiLU in one path and skipped activation and bias in another.
    found = one_rank["feed_forward_and_dropout"]
    assert found["feed_forward"] < 1e-5 < found["silu_would_differ_by"]
    assert found["bias_of_attention"] == 1.0


def test_dropout_is_where_opt_has_it(one_rank: dict[str, Any]) -> None:
    found = one_rank["feed_forward_and_dropout"]
    assert found["embedding_dropout"] == 0.0
    assert found["residual_dropout"] > 0.1


def test_attention_is_causal_and_equals_the_formula(one_rank: dict[str, Any]) -> None:
    found = one_rank["attention_is_causal"]
    assert found["earlier"] == 0.0
    assert found["later"] > 1e-4
    assert found["textbook"] < 1e-5


def test_padding_rows_change_no_logit_no_loss_and_get_no_gradient(one_rank: dict[str, Any], tmp_path: Path) -> None:
    alone = one_rank["padding"]
    split = run_on_gloo(f"{RANKS}:padding", world_size=2, directory=tmp_path)
    assert [alone["rows"], *(found["rows"] for found in split)] == [128, 64, 64]
    for found in (alone, *split):
        assert found["loss_difference"] < 1e-5
        assert found["padding_gradient"] == 0.0
        assert found["logits"] == pytest.approx(alone["logits"], abs=1e-5)


def test_a_run_in_float32_keeps_the_precision_of_its_loss_gradient(one_rank: dict[str, Any]) -> None:
    assert not one_rank["loss_gradient"]["rounded"]
