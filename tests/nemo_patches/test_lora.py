"""Low-rank adapters on Megatron's layers: nothing at first, the same at every layout, and the sum once they are merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_patches.lora_parts import adapter_names
from tests.gloo import run_on_gloo

RANKS = "tests.nemo_patches.lora_ranks"
# Layouts, and products of factors in place of a merged weight, sum in another order in float32.
TOLERANCE = 2e-5


def _run(function: str, world_size: int, directory: Path, **arguments: Any) -> Any:
    return run_on_gloo(f"{RANKS}:{function}", world_size=world_size, directory=directory / f"{function}_{world_size}", **arguments)[0]


@pytest.mark.parametrize("family", ["opt", "gemma2"])
def test_layouts_agree_on_losses_and_gradients(family: str, tmp_path: Path) -> None:
    one, two = (_run("losses_and_gradients", size, tmp_path, family=family) for size in (1, 2))
    assert two["before"] == pytest.approx(one["before"], abs=TOLERANCE)
    assert two["losses"] == pytest.approx(one["losses"], abs=TOLERANCE)
    assert max(abs(a - b) for a, b in zip(one["before"], one["losses"], strict=True)) > 0.01
    assert set(one["squares"]) == set(adapter_names(num_layers=2, is_gated=family == "gemma2"))
    assert min(one["squares"].values()) > 0
    for name, square in one["squares"].items():
        assert two["squares"][name] == pytest.approx(square, rel=1e-3), name


def test_layouts_drop_the_same_inputs_out(tmp_path: Path) -> None:
    one, two = (_run("losses_with_dropout", size, tmp_path) for size in (1, 2))
    assert two == pytest.approx(one, abs=TOLERANCE)


@pytest.mark.parametrize("family", ["opt", "gemma2"])
def test_merged_weights_give_the_same_losses(family: str, tmp_path: Path) -> None:
    adapted = _run("losses_and_gradients", 1, tmp_path, family=family)
    merged = _run("merged_losses", 1, tmp_path, family=family, context_dir=str(tmp_path))
    assert adapted["before"] == pytest.approx(merged["without"], abs=TOLERANCE)  # they start as nothing
    assert merged["merged"] == pytest.approx(adapted["losses"], abs=TOLERANCE)


def test_dropout_acts_in_training_alone(tmp_path: Path) -> None:
    assert _run("dropout", 1, tmp_path) == [True, False]
