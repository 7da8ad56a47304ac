"""Learning rates and batches that grow: against formulas written here, NeMo's scheduler and Megatron's calculator; what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.numbers.arithmetic import embedding_learning_rate, learning_rate
from recipes.numbers.schedules import DECAYS
from recipes.plan import plan, render
from recipes.rules.compose import compose_recipe
from recipes.rules.schema import RampUpRecipe, ScheduleRecipe
from tests.recipes.small_inputs import checked, problem, small_inputs

STEPS = 40
HIGHEST, LOWEST = 1e-3, 1e-4
FORMULAS: dict[str, tuple[dict[str, Any], Callable[[int], float]]] = {
    "linear": ({"constant_steps": 5}, lambda step: HIGHEST - (HIGHEST - LOWEST) * min(step - 4, 31) / 31),
    "cosine": ({"constant_steps": 5}, lambda step: LOWEST + (HIGHEST - LOWEST) * math.cos(math.pi / 2 * min(step - 4, 31) / 31) ** 2),
    "inverse_square_root": ({}, lambda step: max(LOWEST, HIGHEST / math.sqrt(step / 4))),
    "wsd linear": ({"decay_steps": 10}, lambda step: HIGHEST - (HIGHEST - LOWEST) * max(step - 30, 0) / 10),
    "wsd cosine": ({"decay_steps": 10}, lambda step: LOWEST + (HIGHEST - LOWEST) * math.cos(math.pi * max(step - 30, 0) / 20) ** 2),
    "wsd exponential": ({"decay_steps": 10}, lambda step: LOWEST + (HIGHEST - LOWEST) * (2 ** (1 - max(step - 30, 0) / 10) - 1)),
    "wsd minus_sqrt": ({"decay_steps": 10}, lambda step: LOWEST + (HIGHEST - LOWEST) * (1 - (max(step - 30, 0) / 10) ** 0.5)),
    "warmup_hold": ({"hold_steps": 6}, lambda step: HIGHEST - (HIGHEST - LOWEST) * max(step - 10, 0) / 30),
    "fixed": ({"min_learning_rate": 0.0}, lambda step: HIGHEST),
}


def _schedule(style: str, **values: Any) -> ScheduleRecipe:
    name, _, shape = style.partition(" ")
    given = {"min_learning_rate": LOWEST, "warmup_steps": 4, "wsd_decay_style": shape or None, **values}
    return ScheduleRecipe(global_batch_size=1, micro_batch_size=1, learning_rate=HIGHEST, decay_style=name, **given)


@pytest.mark.parametrize("style", FORMULAS)
def test_every_shape_has_its_formula_at_every_step(style: str) -> None:
    values, formula = FORMULAS[style]
    for step in range(STEPS + 1):
        expected = HIGHEST * step / 4 if step < 4 else formula(step)
        assert learning_rate(step, _schedule(style, **values), steps=STEPS) == pytest.approx(expected, rel=1e-12)


def test_an_inverse_square_root_without_warmup_begins_at_the_highest_rate() -> None:
    rates = [learning_rate(step, _schedule("inverse_square_root", warmup_steps=0), steps=STEPS) for step in (0, 1, 4)]
    assert rates == pytest.approx([HIGHEST, HIGHEST, HIGHEST / 2])


def test_warmup_and_hold_are_those_of_nemo() -> None:
    """Of WarmupHoldAnnealLinear; its WarmupHoldPolicy, which has no decay, holds the rate to the end."""
    import torch
    from nemo.core.optim.lr_scheduler import WarmupHoldAnnealLinear

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=HIGHEST)
    theirs = WarmupHoldAnnealLinear(optimizer, warmup_steps=4, hold_steps=6, max_steps=STEPS, min_lr=LOWEST)
    for step in range(STEPS):
        if step >= 4:  # its warmup begins at a rate above 0
            found = learning_rate(step, _schedule("warmup_hold", hold_steps=6), steps=STEPS)
            assert found == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), step
        optimizer.step()
        theirs.step()


def test_embeddings_go_the_same_way_between_rates_of_their_own() -> None:
    schedule = _schedule("cosine", embedding_learning_rate=10 * HIGHEST, embedding_min_learning_rate=10 * LOWEST)
    for step in range(STEPS + 1):
        assert embedding_learning_rate(step, schedule, steps=STEPS) == pytest.approx(10 * learning_rate(step, schedule, steps=STEPS))
    alone = _schedule("cosine", embedding_learning_rate=10 * HIGHEST)
    assert embedding_learning_rate(4, alone, steps=STEPS) == 10 * HIGHEST
    assert embedding_learning_rate(STEPS, alone, steps=STEPS) == LOWEST, "as in Megatron, where the lowest is not given"


# --- Batches that grow ---


def _ramped(start: int, increment: int, samples: int, full: int) -> ScheduleRecipe:
    ramp = RampUpRecipe(start, increment, samples)
    return ScheduleRecipe(global_batch_size=full, micro_batch_size=1, learning_rate=1e-3, ramp_up=ramp)


def test_the_ramp_of_gams3() -> None:
    """128 by 64 over 384,000 samples to 256: each size for 192,000 of them."""
    batches = _ramped(128, 64, 384_000, 256).batches
    assert list(batches.parts(6_953)) == [(128, 1_500), (192, 1_000), (256, 4_453)]
    assert batches.samples(6_953) == 384_000 + 4_453 * 256
    assert batches.ramp_steps == 2_500


@given(
    start=st.integers(1, 12),
    increment=st.integers(1, 9),
    increments=st.integers(1, 6),
    samples=st.integers(1, 400),
    steps=st.integers(0, 90),
)
def test_batches_are_those_of_megatron(start: int, increment: int, increments: int, samples: int, steps: int) -> None:
    """Of its calculator, which is told what was seen before each step; and the closed forms fit each other."""
    from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

    full = start + increments * increment
    batches = _ramped(start, increment, samples, full).batches
    theirs = RampupBatchsizeNumMicroBatchesCalculator(full, 1, 1, False, 1, start, increment, samples)
    seen = 0
    for step in range(steps):
        theirs.update(seen, consistency_check=True)
        size = theirs.current_global_batch_size
        # Its division in floats may end a size a step late, where samples that were seen end on an equal part.
        assert batches.size(step) == size or (seen * increments) % samples == 0, (step, seen)
        assert batches.samples(step) == seen
        seen += batches.size(step)
        assert batches.whole_steps(seen) == step + 1
        assert batches.whole_steps(seen - 1) == step
        assert batches.steps_covering(seen - batches.size(step) + 1) == step + 1
    assert sum(size * number for size, number in batches.parts(steps)) == seen
    assert sum(number for _, number in batches.parts(steps)) == steps


# --- What is refused ---

WSD = ["schedule.decay_style=wsd", "schedule.decay_steps=20", "schedule.wsd_decay_style=linear"]
RAMP = ["+schedule.ramp_up.start_batch_size=8", "+schedule.ramp_up.batch_size_increment=4", "+schedule.ramp_up.samples=64"]
PLAIN = ["model.checkpoint=nemo", "data.train=[data]", "schedule.global_batch_size=16", "schedule.micro_batch_size=4"]
REFUSED = {
    "style": (
        ["schedule.decay_style=polynomial"],
        "schedule.decay_style is 'polynomial'; expected one of cosine, linear, inverse_square_root, wsd, warmup_hold, fixed",
    ),
    "key of another": (
        ["schedule.hold_steps=10"],
        "schedule.hold_steps is 10, but schedule.decay_style is cosine, which does not use it; leave it out, or set decay_style to warmup_hold",
    ),
    "tail of fixed": (
        ["schedule.decay_style=fixed", "schedule.constant_steps=10"],
        "schedule.constant_steps is 10, but schedule.decay_style is fixed, which does not use it;"
        " leave it out, or set decay_style to cosine or linear or wsd or warmup_hold",
    ),
    "no decay": (
        WSD[:1] + WSD[2:],
        "schedule.decay_style is wsd, but schedule.decay_steps is not set; give the number of decay steps",
    ),
    "no shape": (
        WSD[:2],
        "schedule.wsd_decay_style is not given; schedule.decay_style wsd needs one of linear, cosine, exponential, minus_sqrt",
    ),
    "no hold": (
        ["schedule.decay_style=warmup_hold"],
        "schedule.decay_style is warmup_hold, but schedule.hold_steps is not set; give the number of steps at the peak rate",
    ),
    "decay longer than the run": (
        [*WSD, "schedule.decay_steps=120"],
        "schedule.warmup_steps (0) + decay_steps (120) + constant_steps (0) exceed the 100 steps of the run;"
        " at most decay_steps=100 fits the others",
    ),
    "warmup, hold and tail longer than the run": (
        ["schedule.decay_style=warmup_hold", "schedule.warmup_steps=50", "schedule.hold_steps=45", "schedule.constant_steps=10"],
        "schedule.warmup_steps (50) + hold_steps (45) + constant_steps (10) exceed the 100 steps of the run;"
        " at most warmup_steps=45 or hold_steps=40 or constant_steps=5 fits the others",
    ),
    "warmup longer than the run": (
        ["schedule.decay_style=inverse_square_root", "schedule.warmup_steps=101"],
        "schedule.warmup_steps (101) exceeds the 100 steps of the run; at most warmup_steps=100 fits",
    ),
    "lowest of fixed": (
        ["schedule.decay_style=fixed", "schedule.min_learning_rate=1e-5"],
        "schedule.min_learning_rate is 1e-05, but with schedule.decay_style fixed every step has the rate learning_rate (0.001);"
        " leave it out, or set another decay_style",
    ),
    "embeddings swapped": (
        ["schedule.embedding_learning_rate=1e-3", "schedule.embedding_min_learning_rate=2e-3"],
        "schedule.embedding_min_learning_rate (0.002) is above embedding_learning_rate (0.001); are they swapped?",
    ),
    "embeddings' lowest alone": (
        ["schedule.embedding_min_learning_rate=1e-5"],
        "schedule.embedding_min_learning_rate is given without embedding_learning_rate; give both",
    ),
    "embeddings below the others' lowest": (
        ["schedule.embedding_learning_rate=1e-5", "schedule.min_learning_rate=1e-4"],
        "schedule.embedding_learning_rate (1e-05) is below min_learning_rate (0.0001), at which the embeddings' decay ends too;"
        " give embedding_min_learning_rate",
    ),
    "embeddings that are frozen": (
        ["schedule.embedding_learning_rate=1e-2", "+freeze=[{frozen: [embeddings]}]"],
        "schedule.embedding_learning_rate is given, but freeze freezes token table and output layer; leave it out, or train them",
    ),
    "ramp does not divide": (
        [*RAMP, "schedule.ramp_up.batch_size_increment=5"],
        "schedule.ramp_up goes from 8 to 16 samples, which steps of batch_size_increment (5) do not reach; set it to a divisor of 8, for example 4",
    ),
    "ramp from above": (
        [*RAMP, "schedule.ramp_up.start_batch_size=16"],
        "schedule.ramp_up.start_batch_size (16) is not below global_batch_size (16); start with fewer samples, or leave schedule.ramp_up out",
    ),
    "ramp does not divide over the ranks": (
        [*RAMP, "schedule.ramp_up.batch_size_increment=2"],
        "schedule.ramp_up has batches of 8, 10 ... samples, but each must be a multiple of micro_batch_size x data-parallel size (4 x 1 = 4);"
        " set start_batch_size and batch_size_increment to multiples of 4, or take a smaller micro_batch_size or fewer replicas",
    ),
    "ramp longer than the run": (
        [*RAMP, "schedule.ramp_up.samples=4000"],
        "schedule.ramp_up.samples (4,000) are all that the run's 100 steps see (800), so that no step has the 16 of global_batch_size;"
        " set fewer, or give the run more than 417 steps",
    ),
    "ramp of nothing": ([*RAMP, "schedule.ramp_up.samples=0"], "schedule.ramp_up.samples is 0; expected at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused_in_a_sentence(name: str) -> None:
    overrides, sentence = REFUSED[name]
    plain = ["schedule.warmup_steps=0", "schedule.constant_steps=0", "schedule.min_learning_rate=0", "schedule.max_steps=100"]
    assert problem(small_inputs(5_000_000), *PLAIN, *plain, *overrides) == sentence


def test_a_section_that_is_not_whole_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"schedule\.ramp_up\.samples is missing; give it in the file or as schedule\.ramp_up\.samples=VALUE"
    ):
        compose_recipe("demo_adapt", [*PLAIN, *RAMP[:2]])


def test_the_plan_shows_rates_and_batches() -> None:
    inputs = small_inputs(5_000_000)
    overrides = ["schedule.warmup_steps=10", "schedule.constant_steps=0", "schedule.min_learning_rate=1e-5", "schedule.max_steps=100"]
    recipe = checked(inputs, *PLAIN, *RAMP, *WSD, *overrides)
    section = plan(recipe, inputs)["schedule"]
    assert section["batches that grow"] == "8 samples for 4 steps, then 12 samples for 3 steps, then 16 samples for 93 steps"
    assert section["tokens"] == (4 * 8 + 3 * 12 + 93 * 16) * recipe.data.sequence_length
    assert section["learning rate"] == "0 -> 0.001 (warmup, 10 steps) -> 0.001 (stable, 70 steps) -> 1e-05 (linear, 20 steps)"
    assert "batches that grow" in render({"schedule": section})
    assert set(DECAYS) == {"linear", "cosine", "exponential", "minus_sqrt"}


def test_the_tiny_form_keeps_the_shape(tmp_path: Path) -> None:
    """Hold, decay and ramp-up keep their share of the run, so that it still begins small and comes down."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "# @package _global_\ndefaults:\n  - /model: opt_1b\n  - /data: gams\n  - /schedule: gams\n  - /run: gams\n  - _self_\n"
        "schedule:\n  epochs: null\n  max_steps: 6000\n  published_steps: null\n  warmup_steps: 1000\n  decay_style: warmup_hold\n  hold_steps: 1500\n"
        "  constant_steps: 0\n  global_batch_size: 256\n  ramp_up: {start_batch_size: 128, batch_size_increment: 64, samples: 384000}\n"
    )
    tiny = compose_recipe(str(mine), ["+size=tiny", "model.checkpoint=nemo", "data.train=[data]"]).schedule
    assert (tiny.max_steps, tiny.warmup_steps, tiny.hold_steps, tiny.constant_steps) == (12, 2, 3, 0)
    assert tiny.ramp_up == RampUpRecipe(4, 4, 28)  # 0.3 of 96
    assert list(tiny.batches.parts(12)) == [(4, 7), (8, 5)]
