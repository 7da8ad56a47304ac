"""The three stages of GaMS3: what they see, what is refused of them, and what their layouts cost."""

from __future__ import annotations

import pytest

from data_prep.reading.sources import KNOWN_TABLE, table_rows
from recipes.numbers import arithmetic
from recipes.planner.hardware import find_gpu
from recipes.planner.layout import layout_of
from recipes.planner.ranking import Choice, judge, ranked
from recipes.rules.checks import check_run, planned_model
from recipes.rules.compose import compose_recipe
from recipes.rules.published import published_inputs

STAGES = ("parallel_alignment", "base_cpt", "long_cpt")


def ranking(name: str) -> tuple[Choice, list[Choice]]:
    """The published layout as it is planned, and all others of as many GPUs."""
    recipe, inputs = published_inputs(compose_recipe(f"gams3/{name}"))
    recipe = check_run(recipe, inputs)  # which refuses what does not fit
    model, layout, gpu = planned_model(recipe, inputs), layout_of(recipe), find_gpu(recipe.parallel.gpu or "")
    return judge(model, layout, gpu), ranked(model, layout, gpu, num_devices=layout.num_devices)


@pytest.mark.parametrize(
    ("name", "tokens", "gpus", "corpora"),
    [
        ("parallel_alignment", 12_666_798_080, 256, 4),
        ("base_cpt", 116_651_982_848, 512, 20),
        ("long_cpt", 19_914_555_392, 8, 12),
    ],
)
def test_stages_see_their_corpora(name: str, tokens: int, gpus: int, corpora: int) -> None:
    recipe = compose_recipe(f"gams3/{name}")
    assert recipe.run_tokens == tokens and recipe.parallel.world_size == gpus
    assert recipe.data.blend is not None and len(recipe.data.blend) == corpora
    assert sum(recipe.data.blend.values()) == pytest.approx(1, abs=0.002)
    assert set(recipe.data.blend) <= set(table_rows(KNOWN_TABLE)), "names that data_prep.collect knows"
    assert recipe.data.document_mask and recipe.parallel.tensor_parallel_size == 8 and recipe.parallel.sequence_parallel


def test_the_published_rates_of_the_last_stage_are_refused() -> None:
    as_published = compose_recipe("gams3/long_cpt", ["schedule.learning_rate=1e-6", "schedule.min_learning_rate=5e-6"])
    with pytest.raises(ValueError, match=r"schedule\.min_learning_rate \(5e-06\) is above learning_rate \(1e-06\); are they swapped\?"):
        check_run(*published_inputs(as_published))


def test_what_nemo_made_of_them_is_a_choice() -> None:
    """Its WarmupHoldPolicy returns the highest rate for every step behind the warm-up that is not beyond the last."""
    schedule = compose_recipe("gams3/long_cpt", ["+rate=gams3_long_as_run"]).schedule
    rates = [arithmetic.learning_rate(step, schedule, steps=2374) for step in (0, 250, 500, 1500, 2373)]
    assert rates == pytest.approx([0, 0.5e-6, 1e-6, 1e-6, 1e-6], abs=2e-9)
    ours = compose_recipe("gams3/long_cpt").schedule
    assert [arithmetic.learning_rate(step, ours, steps=2374) for step in (500, 1499)] == pytest.approx([5e-6, 5e-6])
    assert arithmetic.learning_rate(2373, ours, steps=2374) == pytest.approx(1e-6, rel=0.01)


def test_the_ramp_up_is_a_switch() -> None:
    plain, growing = (compose_recipe("gams3/base_cpt", choices) for choices in ([], ["+batch=gams3_ramp_up"]))
    assert plain.schedule.ramp_up is None and growing.schedule.ramp_up is not None
    assert plain.run_samples == 6953 * 256
    # 192,000 samples in batches of 128 and of 192 each, then whole ones.
    assert growing.run_samples == 384_000 + (6953 - 1500 - 1000) * 256
    check_run(*published_inputs(growing))


def test_checkpoints_go_by_the_clock() -> None:
    for name in STAGES:
        run = compose_recipe(f"gams3/{name}").run
        assert (run.checkpoint_every_minutes, run.keep_checkpoints, run.asynchronous_save) == (30, 3, True)
        assert run.wandb_project is not None and run.validate_every_steps is not None


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["parallel_alignment", "base_cpt"])
def test_tensor_parallelism_over_two_nodes_fits_and_costs_half_of_the_time(name: str) -> None:
    asked, choices = ranking(name)
    assert asked.fit.fits and asked.layout.tensor_parallel_size == 8 > asked.layout.devices_per_node
    assert asked.time.tensor_parallel > 0.45 * asked.time.total
    best = choices[0]
    assert best.fit.fits and best.layout.tensor_parallel_size == 4 and best.tokens_per_second > 1.5 * asked.tokens_per_second
    within = [choice for choice in choices if choice.layout.tensor_parallel_size <= 4 and choice.fit.fits]
    assert all(choice.time.tensor_parallel < asked.time.tensor_parallel / 3 for choice in within)


def test_the_last_stage_fits_its_node() -> None:
    asked, choices = ranking("long_cpt")
    assert asked.fit.fits and asked.fit.needed_gib < 100
    assert choices[0].fit.fits and choices[0].tokens_per_second > asked.tokens_per_second
