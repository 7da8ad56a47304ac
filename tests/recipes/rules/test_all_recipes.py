"""Every bundled recipe composes, plans with the published model and data, and says where its values come from."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from common.command import arguments_of
from conversion.embeddings.options import VectorOptions
from conversion.families import language_config
from conversion.transfer import main as transfer
from recipes.plan import main, plan, render
from recipes.planner.hardware import find_gpu
from recipes.planner.layout import layout_of
from recipes.planner.ranking import ranked
from recipes.rules.base_models import BASE_MODELS, base_model
from recipes.rules.checkpoint_checks import checkpoint_problems
from recipes.rules.checks import check_run, planned_model
from recipes.rules.compose import CONF_DIR, compose_recipe, recipe_descriptions, recipe_names
from recipes.rules.published import published_inputs, published_steps
from recipes.rules.schema import Recipe
from recipes.rules.settings import choices_of, settings_of
from recipes.runs.run_dir import record_recipe
from tests.conversion.tiny_families import PUBLISHED

PAPERS = ("gams/", "gams3/", "low_resource/", "ofa/", "sava/")
PUBLISHED_RUNS = [name for name in recipe_names() if name.startswith(PAPERS)]


def _planned(name: str, *overrides: str) -> tuple[Recipe, dict[str, dict[str, object]]]:
    recipe, inputs = published_inputs(compose_recipe(name, overrides))
    recipe = check_run(recipe, inputs)
    return recipe, plan(recipe, inputs)


def test_paths_may_have_spaces_brackets_and_letters_beyond_ascii() -> None:
    """In values, lists and mappings; what has quotes already stays, and so does what Hydra itself reads."""
    places = [f"/tmp/moj čas (1)/{name}" for name in "abcd"]
    written = ["data.train=[{1},'{2}',/plain]", "data.validation={{sl: {2},en:{3}}}", "data.weights=[0.5,0.4,0.1]", "model.checkpoint={0}"]
    recipe = compose_recipe("language", [one.format(*places) for one in written])
    assert (recipe.model.checkpoint, recipe.data.train) == (places[0], (places[1], places[2], "/plain"))
    assert recipe.data.validation == {"sl": places[2], "en": places[3]} and recipe.data.weights == (0.5, 0.4, 0.1)


@pytest.mark.some(4)
@pytest.mark.parametrize("name", PUBLISHED_RUNS)
def test_it_plans_without_inputs_and_without_torch(name: str) -> None:
    recipe, sections = _planned(name)
    assert recipe.name == name
    assert recipe.parallel.num_nodes * recipe.parallel.devices_per_node == sections["layout"]["processes"]
    assert "memory per device" in render(sections)
    assert recipe_descriptions()[name].endswith(".")


@pytest.mark.some(12)
@pytest.mark.parametrize("name", recipe_names())
def test_its_tiny_form_keeps_what_it_does(name: str) -> None:
    full, tiny = compose_recipe(name), compose_recipe(name, ["+size=tiny"])
    assert tiny.parallel.world_size == 2 and tiny.data.sequence_length == 48 and tiny.precision == "32"
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
        ("gams/opt_gams", 22_000, None),
        ("gams/quality", 10_046, 10_050),
        ("gams/multi_epoch", 53_653, None),
        ("sava/mistral", 2_000, None),
        ("sava/llama", 3_000, None),
    ],
)
def test_steps_follow_from_tokens_and_batch(name: str, computed: int, paper: int | None) -> None:
    """GaMS rounds, once by 3 %; the plan shows both."""
    recipe, sections = _planned(name)
    assert sections["schedule"]["steps"] == recipe.total_steps == computed
    assert sections["schedule"].get("steps as the paper rounds them") == paper


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gams/focus", 1.540),
        ("gams/opt_gams", 1.419),
        ("gams/quality", 1.419),
        ("sava/mistral_lapt", 7.242),
        ("sava/mistral", 7.248),
        ("sava/llama_lapt", 8.030),
    ],
)
def test_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert _planned(name)[1]["model"]["parameters"] == pytest.approx(billions * 1e9, abs=0.0005e9)


def test_both_sava_runs_see_as_many_tokens() -> None:
    assert {_planned(f"sava/{name}")[1]["schedule"]["tokens"] for name in ("mistral", "llama")} == {12_582_912_000}


def test_the_first_epoch_is_frozen_to_its_last_sample() -> None:
    recipe, _ = _planned("gams/multi_epoch")
    windows = (28_130_000_000 - 1) // 2048
    assert (recipe.freeze[0].until_step or 0) * 1024 >= windows > ((recipe.freeze[0].until_step or 0) - 1) * 1024


def test_eight_runs_of_gams_differ_in_their_checkpoint_alone() -> None:
    names = [f"{method}{kind}" for method in ("focus", "wechsel") for kind in ("", "_tied", "_cse", "_cse_tied")]
    runs = [compose_recipe(f"gams/{name}") for name in names]
    assert len({(run.model.method, run.model.output_layer) for run in runs}) == len(runs)
    assert len({repr(replace(run, name="", model=replace(run.model, method=None, output_layer=None))) for run in runs}) == 1


def test_published_values_are_the_default_and_ours_have_names() -> None:
    """GaMS, 4.3: "tensor parallel rank 4", "22,000 training steps"; OFA, step 4: drawn "N(E[Fs], Var[Fs])"; its script decays along a line."""
    run, ours = compose_recipe("gams/focus"), compose_recipe("gams/focus", ["parallel=a100_40gb_16x4_tp1"])
    assert (run.parallel.tensor_parallel_size, ours) == (4, replace(run, parallel=replace(run.parallel, tensor_parallel_size=1)))
    whole = compose_recipe("gams/opt_gams", ["+steps=whole_epochs"])
    assert (_planned("gams/opt_gams")[1]["schedule"]["steps"], published_steps(whole)) == (22_000, 22_621)
    for name in ("ofa/mono", "ofa/multi", "ofa/full", "ofa/latent_100"):
        recipe = compose_recipe(name)
        assert (recipe.model.fallback, recipe.schedule.decay_style, recipe.schedule.min_learning_rate) == ("random", "linear", 0.0), name


def test_a_checkpoint_with_means_where_rows_are_to_be_drawn_is_refused() -> None:
    recipe, inputs = published_inputs(compose_recipe("ofa/mono"))
    assert checkpoint_problems(recipe, inputs) == []
    facts = {**inputs.checkpoint.facts, "num_rows_by_origin": {"combined": 5, "fallback: mean": 1200}}
    (problem,) = checkpoint_problems(recipe, replace(inputs, checkpoint=replace(inputs.checkpoint, facts=facts)))
    assert problem.startswith("the recipe is for `conversion.transfer --fallback random`, but 1,200 rows of the checkpoint ")


def test_quality_data_train_opt_gams() -> None:
    """GaMS, 4.3: "we test training OPT_GaMS model", "around 21 B tokens, encoded with OPT tokenizer", "10,050 steps", "1,000 and 500"."""
    quality, whole = compose_recipe("gams/quality"), compose_recipe("gams/opt_gams")
    assert quality.model == whole.model and quality.model.vocab_size == 50_272 and quality.freeze == whole.freeze == ()
    assert (quality.schedule.published_steps, quality.schedule.warmup_steps, quality.schedule.constant_steps) == (10_050, 1000, 500)
    corpora = {"Metafida": 6.59, "KAS": 3.61, "Trendi": 1.4, "Rižnica": 0.21, "HrNews": 4.16, "Wikipedia": 4.7, "CC-News": 0.4}
    assert quality.data.published_tokens == round(sum(corpora.values()) * 1e9)  # the paper's Table 1, column of OPT's tokenizer
    assert _planned("gams/quality")[1]["model"]["parameters"] == 1_418_711_040


def test_random_gams_is_not_frozen() -> None:
    """GaMS, 4.3: "When training the FOCUS/WECHSEL GaMS models, we freeze the inner parameters"."""
    random, focus = compose_recipe("gams/random"), compose_recipe("gams/focus")
    assert random.freeze == () and focus.freeze[0].until_step == 1500
    assert replace(random, name="", model=focus.model, freeze=focus.freeze) == replace(focus, name="")
    assert random.model.method == "random-all"  # GaMS, 4.3: "random initialization of the embedding matrix"


@pytest.mark.parametrize("name", ["focus", "focus_tied"])
def test_focus_of_gams_has_the_papers_word_vectors(name: str) -> None:
    """GaMS, 4.2.2: "3 epochs", "every token that occurs more than 10 times", "The dimension of token vectors is set to 768"."""
    command = re.search(r"(--vector-size .*?) \(", (CONF_DIR / f"recipe/gams/{name}.yaml").read_text(encoding="utf-8"))
    assert command is not None
    words = ["--source", "a", "--tokenizer", "b", "--method", "focus", "--output", "c", *command[1].split()]
    told, _ = arguments_of(transfer, words)
    assert VectorOptions(told["vector_size"], told["vector_epochs"], told["vector_min_count"]).for_text(20_000_000) == (768, 3, 11)


@pytest.mark.parametrize(("fact", "value"), [("method", "focus-cse"), ("head", "random")])
def test_multi_epoch_starts_from_wechsel_cse_tied_alone(fact: str, value: str) -> None:
    """GaMS, 4.3: "We train the WECHSEL CSE GaMS model with both embedding and output layer transferred"."""
    recipe, inputs = published_inputs(compose_recipe("gams/multi_epoch"))
    assert inputs.checkpoint.facts == {"method": "wechsel-cse", "head": "copied"}
    other = replace(inputs, checkpoint=replace(inputs.checkpoint, facts=inputs.checkpoint.facts | {fact: value}))
    option = {"method": "--method wechsel-cse", "head": "--output-layer copied"}[fact]
    with pytest.raises(ValueError, match=rf"the recipe is for `conversion\.transfer {option}`, but .* was made with {value}; make it so"):
        check_run(recipe, other)


@pytest.mark.parametrize(("name", "parameters"), [("latent_100", 127), ("latent_200", 167), ("latent_400", 247), ("full", 395)])
def test_factors_are_what_a_recipe_of_ofa_trains(name: str, parameters: int) -> None:
    """OFA, 6.1: "with only 167M parameters, OFA-multi-200"; 5.1: a vocabulary of "401K"; 3: |V| x D' + D' x D in place of |V| x D."""
    recipe, sections = _planned(f"ofa/{name}")
    assert recipe.model.vocab_size == sections["model"]["vocabulary rows"] == 401_145
    assert round(float(str(sections["model"]["parameters"])) / 1e6) == parameters
    size = recipe.model.factorised_size
    table = 401_145 * 768 if size is None else 401_145 * size + size * 768
    assert sections["model"]["parameters"] == sections["model"]["parameters outside the vocabulary tables"] + table  # type: ignore[operator]


@pytest.mark.some(4)
@pytest.mark.parametrize("name", ["mono", "multi"])
@pytest.mark.parametrize(("size", "parameters"), [(100, 127), (200, 167), (400, 247), (None, 395)])
def test_parameters_of_ofas_encoders(name: str, size: int | None, parameters: int) -> None:
    """OFA, Table 1 and 6.1: "with only 167M parameters, OFA-multi-200"; counted by hand: the body, what is before and behind it, the table."""
    recipe, sections = _planned(f"ofa/{name}", f"model.factorised_size={'null' if size is None else size}")
    assert (recipe.objective, recipe.model.vocab_size) == ("masked", 401_145)
    assert (recipe.schedule.global_batch_size, recipe.schedule.learning_rate, recipe.run.checkpoint_every_steps) == (384, 5e-5, 10_000)
    norm = 2 * 768
    layer = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 2 * norm
    ends = 512 * 768 + 768 + norm + 768 * 768 + 768 + norm + 401_145  # positions, type, norm; the head's dense layer, norm and bias
    table = 401_145 * 768 if size is None else 401_145 * size + size * 768
    assert sections["model"]["parameters"] == 12 * layer + ends + table
    assert round(float(str(sections["model"]["parameters"])) / 1e6) == parameters


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.factorised_size=800", "model.factorised_size is 800; expected 1 to 768, the width of the model"),
        ("parallel.pipeline_parallel_size=2",
         "parallel.pipeline_parallel_size is 2, but model.factorised_size is trained with 1 only"),
        ("model.output_layer=copied",
         "model.factorised_size needs tied embeddings; make the checkpoint with conversion.transfer --output-layer tied"),
    ],
)  # fmt: skip
def test_factors_that_no_published_run_can_train(override: str, sentence: str) -> None:
    """A plan without a file of factors refuses what a run with one does."""
    with pytest.raises(ValueError, match=f"cannot run.*{re.escape(sentence)}"):
        _planned("ofa/mono", "model.factorised_size=100", override)


def test_factors_cost_less_than_the_matrix() -> None:
    """Each of the plan's figures follows from the factors: memory, operations and time."""
    figures = []
    for name in ("latent_100", "latent_200", "latent_400", "full"):
        recipe, sections = _planned(f"ofa/{name}", "parallel.gpu=a100-40gb")
        memory, time = (next(part for title, part in sections.items() if title.startswith(word)) for word in ("memory", "time on"))
        figures.append((memory["total"], float(str(sections["work"]["operations of the run"])), time["hours"]))
        layouts = ranked(planned_model(*published_inputs(recipe)), layout_of(recipe), find_gpu("a100-40gb"), num_devices=4)
        assert {choice.layout.pipeline_parallel_size for choice in layouts} == ({1} if recipe.model.factorised_size else {1, 2, 4})
    assert all(low < high for one, other in zip(figures, figures[1:]) for low, high in zip(one, other))


@pytest.mark.parametrize(("name", "warmup", "steps"), [("mistral", 20, 2000), ("llama", 30, 3000)])
@pytest.mark.parametrize("start", ["", "_lapt"])
def test_sava_has_two_schedules(name: str, warmup: int, steps: int, start: str) -> None:
    """SAVA, 4.2: "The learning rate is fixed for all runs"; its configuration decays it along a cosine to a tenth."""
    run = compose_recipe(f"sava/{name}{start}").schedule
    assert (run.learning_rate, run.min_learning_rate, run.warmup_steps, run.max_steps) == (1e-5, 1e-6, warmup, steps)
    assert run.weight_decay * run.learning_rate == pytest.approx(1e-5)  # what decoupled_adamw takes off a weight at the highest rate
    assert (run.adam_beta1, run.adam_beta2, run.adam_epsilon, run.clip_gradient_norm) == (0.9, 0.95, 1e-8, 1.0)
    fixed = compose_recipe(f"sava/{name}{start}", ["+rate=fixed"]).schedule
    assert fixed == replace(run, decay_style="fixed", min_learning_rate=1e-5, warmup_steps=0)
    assert compose_recipe(f"sava/{name}{start}", ["+rate=fixed", "schedule.learning_rate=1e-4"]).schedule.min_learning_rate == 1e-4


@pytest.mark.parametrize("name", [name for name in PUBLISHED_RUNS if name.startswith("low_resource/")])
def test_low_resource_runs_fit_the_one_gpu_of_the_paper(name: str) -> None:
    """Low-resource paper, C.3: "a single NVIDIA A100 (80GB) for all experiments"; its Table 6; sentences of "0.01GB"."""
    recipe, _ = _planned(name)
    assert (recipe.parallel.world_size, recipe.parallel.gpu) == (1, "a100-80gb")
    schedule = recipe.schedule
    assert (schedule.global_batch_size, schedule.epochs, schedule.learning_rate, schedule.warmup_steps) == (8, 2, 1e-4, 100)
    assert (schedule.adam_beta1, schedule.adam_beta2, schedule.adam_epsilon, schedule.weight_decay) == (0.9, 0.999, 1e-8, 0.01)
    assert 1 <= 0.01e9 / (recipe.data.published_tokens or 0) <= 4  # bytes a token: Llama spells rare scripts in bytes
    if name.endswith("_lapt"):
        assert (recipe.data.sequence_length, recipe.objective, recipe.model.method) == (2048, "next_token", None)
        assert recipe.lora is not None and (recipe.lora.rank, recipe.lora.alpha, recipe.lora.dropout) == (8, 32, 0.05)


def test_base_models_are_what_their_config_json_says() -> None:
    for name, published in BASE_MODELS.items():
        known = language_config(PUBLISHED.get(name.removesuffix("-v0.1"), {}))
        for key, value in published.items():
            assert known.get(key, value) == value, (name, key)
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


@pytest.mark.parametrize("name", PUBLISHED_RUNS)
def test_every_setting_names_its_source(name: str) -> None:
    path = CONF_DIR / "recipe" / f"{name}.yaml"
    files = [path, *(CONF_DIR / f"{choice}.yaml" for choice in choices_of(path))]
    assert [setting for file in files for setting in settings_of(file) if len(setting.source) < 4] == []


def test_a_second_head_may_start_random() -> None:
    """Low-resource paper, 5: "random initialization does not work well (Appendix E.3)", its Table 10 beside the copy."""
    copied, drawn = (compose_recipe("low_resource/llama2", choices) for choices in ([], ["objective=two_tokens_random"]))
    assert (copied.second_head, drawn.second_head) == ("copied", "random") and replace(drawn, second_head="copied") == copied
    with pytest.raises(ValueError, match=r"second_head is 'fresh'; "):
        _planned("low_resource/llama2", "second_head=fresh")
