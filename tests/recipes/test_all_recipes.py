"""Every bundled recipe composes, plans with the published model and data, and says where its values come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from recipes import arithmetic
from recipes.base_models import BASE_MODELS, base_model
from recipes.checks import check_run
from recipes.compose import CONF_DIR, compose_recipe, recipe_descriptions, recipe_names
from recipes.plan import main, plan, render
from recipes.published import published_inputs
from recipes.run_dir import record_recipe
from recipes.schema import Recipe
from recipes.settings import choices_of, settings_of
from recipes.sources import tables
from tests.conversion.tiny_families import PUBLISHED

PAPERS = ("gams/", "low_resource/", "ofa/", "sava/")
PUBLISHED_RUNS = [name for name in recipe_names() if name.startswith(PAPERS)]


def _planned(name: str, *overrides: str) -> tuple[Recipe, dict[str, dict[str, object]]]:
    recipe, inputs = published_inputs(compose_recipe(name, overrides))
    recipe = check_run(recipe, inputs)
    return recipe, plan(recipe, inputs)


@pytest.mark.parametrize("name", PUBLISHED_RUNS)
def test_it_plans_without_inputs_and_without_torch(name: str) -> None:
    recipe, sections = _planned(name)
    assert recipe.name == name
    assert recipe.parallel.num_nodes * recipe.parallel.devices_per_node == sections["layout"]["processes"]
    assert "memory per device" in render(sections)
    assert recipe_descriptions()[name].endswith(".")


@pytest.mark.parametrize("name", recipe_names())
def test_its_tiny_form_keeps_what_it_does(name: str) -> None:
    full, tiny = compose_recipe(name), compose_recipe(name, ["+size=tiny"])
    assert arithmetic.world_size(tiny.parallel) == 2 and tiny.data.sequence_length == 48 and tiny.precision == "32"
    assert tiny.schedule.epochs == full.schedule.epochs
    assert bool(tiny.schedule.warmup_steps) == bool(full.schedule.warmup_steps)
    assert bool(tiny.schedule.constant_steps) == bool(full.schedule.constant_steps)
    assert tiny.schedule.learning_rate == full.schedule.learning_rate
    assert [replace(rule, until_step=None) for rule in tiny.freeze] == [replace(rule, until_step=None) for rule in full.freeze]
    assert [rule.until_step is None for rule in tiny.freeze] == [rule.until_step is None for rule in full.freeze]
    assert (tiny.model.base, tiny.data.published_tokens) == (None, None)


def test_overrides_win_over_the_tiny_form() -> None:
    assert compose_recipe("gams/focus", ["+size=tiny", "schedule.warmup_steps=5"]).schedule.warmup_steps == 5


@pytest.mark.parametrize(
    ("name", "computed", "paper"),
    [
        ("gams/focus", 13_413, 13_400),
        ("gams/opt_gams", 22_621, 22_000),
        ("gams/quality", 10_013, 10_050),
        ("gams/multi_epoch", 53_653, None),
        ("sava/mistral", 2_000, None),
        ("sava/llama", 3_000, None),
    ],
)
def test_steps_follow_from_tokens_and_batch(name: str, computed: int, paper: int | None) -> None:
    """GaMS rounds, once by 3 %; the plan shows both."""
    recipe, sections = _planned(name)
    assert sections["schedule"]["steps"] == arithmetic.total_steps(recipe) == computed
    assert sections["schedule"].get("steps as the paper rounds them") == paper


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gams/focus", 1.540), ("gams/opt_gams", 1.419), ("sava/mistral_lapt", 7.242), ("sava/mistral", 7.248), ("sava/llama_lapt", 8.030)],
)
def test_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert _planned(name)[1]["model"]["parameters"] == pytest.approx(billions * 1e9, abs=0.0005e9)


def test_both_sava_runs_see_as_many_tokens() -> None:
    assert {_planned(f"sava/{name}")[1]["schedule"]["tokens"] for name in ("mistral", "llama")} == {12_582_912_000}


def test_the_first_epoch_is_frozen_to_its_last_sample() -> None:
    recipe, _ = _planned("gams/multi_epoch")
    windows = (28_130_000_000 - 1) // 2048
    assert (recipe.freeze[0].until_step or 0) * 1024 >= windows > ((recipe.freeze[0].until_step or 0) - 1) * 1024


def test_ten_runs_of_gams_differ_in_their_checkpoint_alone() -> None:
    runs = [compose_recipe(f"gams/{name}") for name in ("random", "focus", "focus_tied", "wechsel", "focus_cse", "wechsel_cse_tied")]
    assert len({(run.model.method, run.model.output_layer) for run in runs}) == len(runs)
    assert len({repr(replace(run, name="", model=replace(run.model, method=None, output_layer=None))) for run in runs}) == 1


def test_base_models_are_what_their_config_json_says() -> None:
    for name, published in BASE_MODELS.items():
        known = PUBLISHED.get(name.removesuffix("-v0.1"))
        for key, value in published.items():
            assert known is None or known.get(key, value) == value, (name, key)
    with pytest.raises(ValueError, match=r"^model\.base is 'opt-13b'; expected one of opt-1\.3b, "):
        base_model("opt-13b")


def test_the_list_shows_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in recipe_names())


def test_a_resolved_recipe_is_what_a_run_records(tmp_path: Path) -> None:
    recipe, _ = _planned("gams/multi_epoch")
    record_recipe(tmp_path, recipe)
    record_recipe(tmp_path, _planned("gams/multi_epoch")[0])


def test_the_docs_have_the_tables_of_all_settings() -> None:
    text = (CONF_DIR.parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert f"<!-- tables -->\n\n{tables()}\n<!-- end -->" in text, "run python -m recipes.sources and put its tables into docs/recipes.md"


@pytest.mark.parametrize("name", PUBLISHED_RUNS)
def test_every_setting_names_its_source(name: str) -> None:
    path = CONF_DIR / "recipe" / f"{name}.yaml"
    files = [path, *(CONF_DIR / f"{choice}.yaml" for choice in choices_of(path))]
    assert [setting for file in files for setting in settings_of(file) if len(setting.source) < 4] == []
