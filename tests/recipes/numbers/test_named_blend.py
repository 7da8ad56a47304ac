"""Shares of data sets by the names of their folders, and checkpoints by the clock: rules and arithmetic, without a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recipes.numbers.steps import weights_of
from recipes.rules.compose import compose_recipe
from recipes.rules.schema import RunRecipe
from tests.recipes.small_inputs import checked, problem, small_inputs

INPUTS = small_inputs(50_000, 70_000)
TRAIN = "data.train=[a/kas,b/metafida]"


def test_shares_follow_names_and_not_places() -> None:
    for order, expected in (("[a/kas,b/metafida]", (0.2, 0.8)), ("[b/metafida,a/kas]", (0.8, 0.2))):
        recipe = checked(INPUTS, f"data.train={order}", "data.blend={kas: 0.2, metafida: 0.8}")
        assert weights_of(recipe.data, INPUTS.train) == expected


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            (TRAIN, "data.blend={kas: 0.2, metafida: 0.8, trendi: 1}"),
            "data.blend has trendi, but no data set of data.train is called so (its last folder); give all of them,"
            " or say with data.blend=null data.weights=[...] how much of each there is",
        ),
        ((TRAIN, "data.blend={kas: 0.2}"), "data.train has b/metafida, to which data.blend gives no share; it names kas"),
        (
            ("data.train=[a/kas,b/kas]", "data.blend={kas: 1}"),
            "data.train has several data sets called kas, which data.blend cannot distinguish; rename their folders",
        ),
        (
            (TRAIN, "data.blend={kas: 0.2, metafida: 0.8}", "data.weights=[1,2]"),
            "data.blend and data.weights both set the share of each data set; give one of them",
        ),
        (
            (TRAIN, "data.blend={kas: 0.2, metafida: 0.8}", "schedule.epochs=1", "schedule.max_steps=null"),
            "schedule.epochs trains on all of the data, but data.blend selects parts of it; give one of them",
        ),
        ((TRAIN, "data.blend={kas: 0.2, metafida: 0}"), "data.blend is [0.2, 0.0]; expected numbers above 0"),
        ((TRAIN, "run.checkpoint_every_minutes=0"), "run.checkpoint_every_minutes is 0; expected a number above 0"),
    ],
)
def test_what_does_not_fit_is_refused(overrides: tuple[str, ...], sentence: str) -> None:
    assert problem(INPUTS, *overrides) == sentence


def test_saves_by_steps_or_minutes_whichever_comes_first() -> None:
    run = RunRecipe(checkpoint_every_steps=500)
    assert run.steps_between_saves(step_seconds=20) == 500
    timed = replace(run, checkpoint_every_minutes=30)
    assert timed.steps_between_saves(step_seconds=20) == 90
    assert timed.steps_between_saves(step_seconds=1) == 500
    assert compose_recipe("demo_adapt").run.checkpoint_every_minutes is None
