"""Work and its share of the possible against a hand calculation; the rows that a transfer made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recipes.numbers.batches import Batches, Stretch
from recipes.training.metrics import Rates, new_rows

GAMS = Rates(
    positions_per_sample=2048,
    batches=Batches((Stretch(0, 0, 1024),)),
    bytes_per_token=4.5,
    held_out_bytes_per_token={},
    flops_per_token=9.47e9,
    num_devices=64,
    peak_flops=312e12,
)


def test_utilisation_is_that_of_a_step_in_two_seconds() -> None:
    """64 A100 that take 2.21 s for a step of GaMS do 140 TFLOP/s each, 45 % of 312."""
    work = GAMS.of_work(GAMS.positions(1) / 2.21)
    assert work["tflops_per_device"] == pytest.approx(140.4, abs=0.1)
    assert work["mfu"] == pytest.approx(0.45, abs=0.001)


def test_no_utilisation_of_an_unknown_device() -> None:
    assert set(replace(GAMS, peak_flops=None).of_work(1e6)) == {"tflops_per_device"}


@pytest.mark.parametrize(
    ("facts", "rows"),
    [
        ({}, range(0, 100)),
        ({"vocabulary": {"strategy": "replace"}}, range(0, 100)),
        ({"vocabulary": {"strategy": "expand", "num_new_tokens": 30}}, range(70, 100)),
    ],
)
def test_new_rows_are_those_behind_the_old_ones_or_all(facts: dict[str, object], rows: range) -> None:
    assert new_rows(facts, vocab_size=100) == rows
