"""Recipes that contradict themselves or their inputs are refused, with all problems at once and what would be legal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import write_manifest
from recipes.plan import Options, plan, render
from recipes.planner.hardware import find_gpu
from recipes.rules.compose import compose_recipe, recipe_names
from recipes.rules.inputs import RunInputs, read_inputs
from recipes.rules.schema import Recipe
from recipes.runs.run_dir import is_disk_full, newest_checkpoint, record_recipe
from tests.recipes.small_inputs import problem, small_inputs
from tests.refusals import refused

OVERRIDES = ("model.checkpoint=nemo", "data.train=[data]")


def _inputs(**facts: Any) -> RunInputs:
    return small_inputs(50_000, data=facts)


def _problem(*overrides: str, inputs: RunInputs | None = None) -> str:
    return problem(inputs or _inputs(), *OVERRIDES, *overrides)


def test_sequence_must_fit_the_position_table() -> None:
    assert _problem("data.sequence_length=256") == ("data.sequence_length (256) is longer than the model's context length (128 positions)")


def test_tokenizer_of_data_and_checkpoint_must_be_one() -> None:
    assert _problem(inputs=_inputs(tokenizer_digest="xxh3:b")) == (
        "the data set data uses tokenizer xxh3:b, but the checkpoint nemo uses tokenizer xxh3:a; make both with the same tokenizer"
    )


def test_text_shorter_than_a_sample_is_refused() -> None:
    assert _problem(inputs=_inputs(num_tokens=100)) == ("the data set data has 100 tokens; one sample needs 129")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=3", "parallel.devices_per_node=3"],
            "parallel.pipeline_parallel_size (3) does not divide the 4 layers; possible are 1, 2, 4",
        ),
        (
            ["parallel.devices_per_node=3"],
            "1 nodes x 3 devices = 3 processes are not a multiple of tensor_parallel_size x pipeline_parallel_size (2 x 1 = 2);"
            " the nearest are 2 and 4",
        ),
    ],
)
def test_refused_with_what_is_legal(overrides: list[str], sentence: str) -> None:
    assert _problem(*overrides) == sentence


def test_data_of_a_larger_vocabulary_is_refused() -> None:
    inputs = small_inputs(50_000, data={"vocab_size": 1100})
    assert _problem(inputs=inputs) == "the data set data has ids up to 1099, but the checkpoint has 1001 rows"


def test_all_problems_come_together() -> None:
    message = _problem(
        "parallel.tensor_parallel_size=4",
        "parallel.devices_per_node=6",
        "data.sequence_length=256",
        "schedule.warmup_steps=90",
        "schedule.constant_steps=20",
        "schedule.min_learning_rate=1",
        "run.validate_every_steps=10",
        "precision=fp8",
    )
    assert message.startswith("recipe demo_adapt cannot run, 7 problems:\n  - ")
    for part in (
        "does not divide the 6 attention heads",
        "= 6 processes are not a multiple of tensor_parallel_size x pipeline_parallel_size (4 x 1 = 4); the nearest are 4 and 8",
        "longer than the model's context length",
        "schedule.warmup_steps (90) + constant_steps (20) exceed the 100 steps of the run; at most warmup_steps=80 or constant_steps=10 fits the other",
        "schedule.min_learning_rate (1) is above learning_rate (0.001); are they swapped?",
        "run.validate_every_steps is given without data.validation",
        "precision is 'fp8'; expected one of bf16, 32",
    ):
        assert part in message


def test_too_few_checkpoints_are_refused() -> None:
    sentence = "run.keep_checkpoints is 1; expected at least 2, so that an older one remains if the newest is damaged"
    assert _problem("run.keep_checkpoints=1") == sentence
    assert _problem("run.keep_held_checkpoints=-1") == "run.keep_held_checkpoints is -1; expected 0 or more"


def test_unknown_keys_name_the_nearest_known_one() -> None:
    with refused(
        "the recipe cannot run, 2 problems:\n"
        "  - unknown key data.sequence_lenght; the nearest known key is data.sequence_length\n"
        "  - unknown key schedule.learnig_rate; the nearest known key is schedule.learning_rate"
    ):
        compose_recipe("demo_adapt", [*OVERRIDES, "schedule.learnig_rate=1e-3", "data.sequence_lenght=64"])


def test_missing_and_mistyped_values_are_named() -> None:
    with refused(
        "the recipe cannot run, 2 problems:\n"
        "  - schedule.max_steps is 'many'; expected int\n"
        "  - run.checkpoint_every_steps is missing; give it in the file or as run.checkpoint_every_steps=VALUE"
    ):
        compose_recipe("demo_adapt", ["run.checkpoint_every_steps=???", "schedule.max_steps=many"])
    with refused(
        "recipe demo_adapt cannot run, 2 problems:\n"
        "  - model.checkpoint is missing; give it in the file or as model.checkpoint=VALUE\n"
        "  - data.train names no data set; give outputs of data_prep.to_megatron in the recipe or as data.train=[VALUE,...]"
    ):
        read_inputs(compose_recipe("demo_adapt"))


def test_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^there is no recipe demo_adopt; did you mean demo_adapt\? The bundled recipes are .*demo_adapt"):
        compose_recipe("demo_adopt")


def test_a_recipe_can_be_a_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((Path("recipes/conf/recipe/demo_adapt.yaml").read_text()).replace("name: demo_adapt", "name: mine"))
    assert compose_recipe(str(mine), OVERRIDES).name == "mine"


def test_a_file_that_is_no_yaml_is_named_with_the_place(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("model: {checkpoint: ???}\n")
    with pytest.raises(ValueError, match=r"^the recipe .*mine\.yaml is not valid YAML: while parsing .* line 1, column 21$"):
        compose_recipe(str(mine))


def test_missing_inputs_are_all_named(tmp_path: Path) -> None:
    recipe = compose_recipe("demo_adapt", [f"model.checkpoint={tmp_path / 'nemo'}", f"data.train=[{tmp_path / 'data'}]"])
    with refused(
        "recipe demo_adapt cannot run, 2 problems:\n"
        f"  - {tmp_path / 'nemo'} is not a directory; make it with `python -m conversion.hf_to_nemo`\n"
        f"  - {tmp_path / 'data'} is not a directory; make it with `python -m data_prep.to_megatron`"
    ):
        read_inputs(recipe)


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        (None, "{0} is missing; its manifest lists it with 100 bytes; make {1} again"),
        (60, "{0} has 60 bytes, but its manifest says 100: truncated or edited; make {1} again"),
    ],
)
def test_damaged_data_is_refused(tmp_path: Path, left: int | None, sentence: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    shard = data / "text.bin"
    shard.write_bytes(b"x" * 100)
    write_manifest(data, stage="data_prep.to_megatron", facts={})
    shard.unlink() if left is None else shard.write_bytes(b"x" * left)
    recipe = compose_recipe("demo_adapt", [f"model.checkpoint={tmp_path / 'nemo'}", f"data.train=[{data}]"])
    with refused(
        "recipe demo_adapt cannot run, 2 problems:\n"
        f"  - {tmp_path / 'nemo'} is not a directory; make it with `python -m conversion.hf_to_nemo`\n"
        f"  - {sentence.format(shard, data)}"
    ):
        read_inputs(recipe)


def _recipe() -> Recipe:
    return compose_recipe("demo_adapt", OVERRIDES)


def test_a_run_keeps_its_recipe_but_may_change_its_layout(tmp_path: Path) -> None:
    recipe = _recipe()
    record_recipe(tmp_path, recipe)
    record_recipe(tmp_path, replace(recipe, parallel=replace(recipe.parallel, devices_per_node=4)))
    with refused(f"{tmp_path} holds a run of another recipe: seed was 42 and is 7; choose another --output or the same recipe"):
        record_recipe(tmp_path, replace(recipe, seed=7))


def test_newest_checkpoint_is_complete_or_refused(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    for step in (5, 10):
        directory = tmp_path / f"checkpoints/step_{step:07d}"
        directory.mkdir(parents=True)
        (directory / "weights").write_bytes(b"12345")
        write_manifest(directory, stage="recipes.train", facts={"step": step}, hash_files=False)
    (tmp_path / "checkpoints/.step_0000015.partial").mkdir()
    assert newest_checkpoint(tmp_path) == (10, tmp_path / "checkpoints/step_0000010")
    (tmp_path / "checkpoints/step_0000010/weights").write_bytes(b"123")
    with pytest.raises(ValueError, match=r"has 3 bytes, but its manifest says 5: truncated or edited; remove .*step_0000010 to resume"):
        newest_checkpoint(tmp_path)


def test_a_disk_with_space_is_not_full(tmp_path: Path) -> None:
    assert not is_disk_full(tmp_path) and not list(tmp_path.iterdir())
    assert not is_disk_full(tmp_path / "none"), "another error is not taken for a full disk"


def test_the_plan_says_what_it_knows_of_a_gpu() -> None:
    recipe = compose_recipe("demo_adapt", [*OVERRIDES, "precision=bf16"])
    without = render(plan(recipe, _inputs()))
    assert "no GPU is given; give --gpu or parallel.gpu" in without
    shown = plan(recipe, _inputs(), Options(gpu=find_gpu("h100-80gb"), num_gpus=8, count=3))
    assert "time on 2 x h100-80gb (calibrated)" in shown
    ranking = shown["fastest layouts on 8 x h100-80gb (calibrated)"]
    assert len(ranking) == 3 and all("fits" not in str(line) and "GiB" in str(line) for line in ranking.values())
    assert "time model supports bfloat16 only" in render(
        plan(compose_recipe("demo_adapt", OVERRIDES), _inputs(), Options(gpu=find_gpu("h100-80gb")))
    )


def test_the_plan_knows_documents_that_do_not_see_each_other() -> None:
    """They are said, and cost the results of attention once more."""
    together, apart = (plan(compose_recipe("demo_adapt", [*OVERRIDES, *more]), _inputs()) for more in ((), ("data.document_mask=true",)))
    assert "samples of" not in together["schedule"]
    assert apart["schedule"]["attention"] == "intra-document masking"
    [activations] = {name for section in together.values() for name in section if name.startswith("activations")}
    [before, after] = [next(section[activations] for section in found.values() if activations in section) for found in (together, apart)]
    assert float(str(after).split()[0]) > float(str(before).split()[0])


def test_freeze_rules_are_checked_against_the_run_and_its_pipeline() -> None:
    assert _problem("freeze=[{frozen:[body],until_step:100}]") == (
        "freeze[0].until_step is 100; expected 1 to 99, or none for the whole run"
    )
    assert _problem("freeze=[{trained:[positions]}]", "parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=2") == (
        "freeze leaves pipeline stages 1 of 2 without trainable parameters, which the engine cannot save;"
        " set parallel.pipeline_parallel_size=1"
    )


def test_validation_sets_have_languages_and_one_alone_is_called_all() -> None:
    assert compose_recipe("demo_adapt", [*OVERRIDES, "data.validation=held"]).data.validation == {"all": "held"}
    named = compose_recipe("demo_adapt", [*OVERRIDES, "data.validation={sl:held/sl,en:held/en}", "data.validation.it=held/it"])
    assert named.data.validation == {"sl": "held/sl", "en": "held/en", "it": "held/it"}


@pytest.mark.some(6)
@pytest.mark.parametrize("name", recipe_names())
def test_held_out_text_that_is_given_is_never_ignored(name: str) -> None:
    recipe = compose_recipe(name, ["data.validation=held_out"])
    assert recipe.validation_steps == (recipe.run.validate_every_steps or recipe.run.checkpoint_every_steps)
    assert compose_recipe(name).validation_steps is None
