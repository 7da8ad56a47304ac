"""Numbers that no run can have are refused by one table, which knows every key."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from recipes.rules.checks import value_problems
from recipes.rules.compose import compose_recipe
from recipes.rules.ranges import RANGES, samples_problems
from recipes.rules.schema import Recipe
from recipes.runs.run_dir import RECIPE_NAME, record_recipe
from recipes.train import main


def _numeric_keys(kind: type, prefix: str = "") -> Iterator[str]:
    for name, hint in typing.get_type_hints(kind).items():
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        for option in options:
            inner = typing.get_args(option) if typing.get_origin(option) in (tuple, dict) else (option,)
            if is_dataclass(option):
                yield from _numeric_keys(typing.cast(type, option), f"{prefix}{name}.")
            elif float in inner or int in inner:
                yield prefix + name


def test_every_key_that_holds_numbers_has_its_range() -> None:
    assert sorted(RANGES) == sorted(_numeric_keys(Recipe))


def _problems(*overrides: str) -> list[str]:
    return value_problems(compose_recipe("demo_adapt", overrides))


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("seed=4294967296", "seed is 4294967296; expected 1 to 2,147,483,647"),
        ("seed=0", "seed is 0; expected 1 to 2,147,483,647"),
        ("schedule.learning_rate=nan", "schedule.learning_rate is nan; expected a number above 0"),
        ("schedule.learning_rate=inf", "schedule.learning_rate is inf; expected a number above 0"),
        ("schedule.min_learning_rate=nan", "schedule.min_learning_rate is nan; expected 0 or more"),
        ("schedule.adam_beta1=1.0", "schedule.adam_beta1 is 1; expected 0 or more and below 1"),
        ("schedule.adam_beta2=-0.1", "schedule.adam_beta2 is -0.1; expected 0 or more and below 1"),
        ("schedule.adam_epsilon=0", "schedule.adam_epsilon is 0; expected a number above 0"),
        ("schedule.weight_decay=-0.1", "schedule.weight_decay is -0.1; expected 0 or more"),
        ("schedule.clip_gradient_norm=-1", "schedule.clip_gradient_norm is -1; expected 0 or more"),
        ("schedule.warmup_steps=-4", "schedule.warmup_steps is -4; expected 0 or more"),
        ("schedule.epochs=nan", "schedule.epochs is nan; expected a number above 0"),
        ("model.hidden_dropout=2", "model.hidden_dropout is 2; expected 0 or more and below 1"),
        ("lora={rank:0}", "lora.rank is 0; expected at least 1"),
        ("lora={alpha:0}", "lora.alpha is 0; expected a number above 0"),
        ("data.num_workers=-1", "data.num_workers is -1; expected 0 or more"),
        ("data.weights=[1,nan]", "data.weights is [1.0, nan]; expected numbers above 0"),
        ("run.hang_factor=0", "run.hang_factor is 0; expected at least 1"),
        ("schedule.micro_batch_size=0", "schedule.micro_batch_size is 0; expected at least 1"),
        ("run.skip_nonfinite_steps=-1", "run.skip_nonfinite_steps is -1; expected 0 or more"),
        (
            "run.stop_signals=[SIGTERM,SIGKILL,USR1]",
            "run.stop_signals names SIGKILL, USR1; expected signals that a process can handle, such as SIGTERM, SIGUSR1",
        ),
    ],
)
def test_refused_with_what_is_expected(override: str, sentence: str) -> None:
    assert _problems(override) == [sentence]


def test_what_the_bundled_recipes_say_is_in_range() -> None:
    assert _problems() == []
    assert _problems("schedule.weight_decay=0", "schedule.clip_gradient_norm=0", "schedule.adam_beta1=0", "seed=2147483647") == []


def test_values_are_refused_before_anything_else_happens(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.stop_signals names SIGFOO"):
        main(["--recipe", "demo_adapt", "--output", str(tmp_path / "run"), "run.stop_signals=[SIGFOO]"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ['{"name": "demo_adapt", "mod', "5", "[]", '{"name": 1}'])
def test_a_recipe_json_that_was_cut_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / RECIPE_NAME).write_text(content)
    with pytest.raises(ValueError) as error:
        record_recipe(tmp_path, compose_recipe("demo_adapt"))
    assert str(error.value).startswith(f"{tmp_path}/recipe.json is not the recipe of a run (")
    assert str(error.value).endswith("; restore it (under Slurm from attempts/latest), or choose another --output")


@pytest.mark.parametrize("content", ["5", "- 5", "", "text", "true"])
def test_a_recipe_file_that_holds_no_keys_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(ValueError) as error:
        compose_recipe(str(tmp_path / "mine.yaml"))
    assert "mine.yaml" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("defaults: [null]", "has None among its defaults"),
        ("defaults: [[opt_1b]]", "among its defaults"),
        ("defaults: [{/model: opt_1b, /data: gams}]", "among its defaults"),
        ("defaults: [{/model: null}]", "among its defaults"),
        ("defaults: [override hydra/job_logging: none, {override /hydra/launcher: x}]", "among its defaults"),
        ("hydra: {run: {dir: x}}", "has a key hydra"),
    ],
)
def test_what_hydra_would_not_understand_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        compose_recipe(str(tmp_path / "mine.yaml"))
    with pytest.raises(ValueError, match="configures Hydra"):
        compose_recipe("demo_adapt", ["hydra.run.dir=x"])


def test_a_count_has_an_end() -> None:
    for key in ("schedule.max_steps", "schedule.global_batch_size", "parallel.num_nodes", "schedule.epochs"):
        assert len(_problems(f"{key}={10**20}")) == 1, key
    assert _problems(f"schedule.max_steps={10**20}") == ["schedule.max_steps is 100000000000000000000; expected 1 to 2,147,483,647"]
    long = compose_recipe("demo_adapt", ["schedule.max_steps=1000000000", "schedule.global_batch_size=4"])
    assert samples_problems(long) == ["the run has 4,000,000,000 samples of 128 tokens; expected at most 2,147,483,647: make it shorter"]
