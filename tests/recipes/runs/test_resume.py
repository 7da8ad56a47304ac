"""A run goes on only with the model, the tokenizer and the data that it was started with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.artifacts import FileRecord, Manifest, write_manifest
from recipes.rules.compose import compose_recipe
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe
from recipes.runs.run_dir import check_resume, record_recipe, remove_left_over

MODEL = {"num_layers": 2, "hidden_size": 32}


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Recipe, RunInputs]:
    """A checkpoint of a run with its recipe and inputs."""
    inputs = RunInputs(
        family="opt",
        model=MODEL,
        checkpoint=Manifest(stage="conversion.hf_to_nemo", facts={"tokenizer_digest": "xxh3:a"}),
        train=(Manifest(stage="data_prep.to_megatron"),),
    )
    recipe = compose_recipe("demo_adapt", ["model.checkpoint=nemo", "data.train=[data]"])
    checkpoint = tmp_path / "step_0000002"
    (checkpoint / "context").mkdir(parents=True)
    (checkpoint / "context/model.json").write_text(json.dumps({"family": "opt", "config": MODEL}))
    write_manifest(
        checkpoint,
        stage="recipes.train",
        facts={"tokenizer_digest": "xxh3:a", "step": 2},
        arguments={},
        inputs={"checkpoint": inputs.checkpoint.digest, "data": inputs.train[0].digest},
    )
    return checkpoint, recipe, inputs


def _refusal(checkpoint: Path, recipe: Recipe, inputs: RunInputs) -> str:
    with pytest.raises(ValueError) as error:
        check_resume(checkpoint, recipe, inputs)
    return str(error.value).replace(str(checkpoint), "CHECKPOINT")


def _of_other_content(manifest: Manifest) -> Manifest:
    return replace(manifest, files={"weights": FileRecord(1, "xxh3:b")})


def test_the_same_inputs_go_on(run: tuple[Path, Recipe, RunInputs]) -> None:
    check_resume(*run)


def test_another_architecture_is_refused(run: tuple[Path, Recipe, RunInputs]) -> None:
    checkpoint, recipe, inputs = run
    other = replace(inputs, family="llama", model={**MODEL, "num_layers": 4})
    assert _refusal(checkpoint, recipe, other) == (
        "the run cannot resume from CHECKPOINT: its architecture differs from that of nemo: family 'opt' and now 'llama', num_layers 2 and now 4."
        " Choose another --output, or restore the original inputs"
    )


def test_another_tokenizer_is_refused(run: tuple[Path, Recipe, RunInputs]) -> None:
    checkpoint, recipe, inputs = run
    other = replace(inputs, checkpoint=replace(inputs.checkpoint, facts={"tokenizer_digest": "xxh3:b"}))
    assert _refusal(checkpoint, recipe, other) == (
        "the run cannot resume from CHECKPOINT: it was trained with tokenizer xxh3:a, but nemo has tokenizer xxh3:b."
        " Choose another --output, or restore the original inputs"
    )


def test_other_weights_and_other_data_are_refused(run: tuple[Path, Recipe, RunInputs]) -> None:
    checkpoint, recipe, inputs = run
    other = replace(inputs, checkpoint=_of_other_content(inputs.checkpoint), train=(_of_other_content(inputs.train[0]),))
    assert _refusal(checkpoint, recipe, other) == (
        "the run cannot resume from CHECKPOINT: the weights in nemo have changed since the run started;"
        " the data set data has changed since the run started, so that samples would be lost or repeated."
        " Choose another --output, or restore the original inputs"
    )


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    for name in ("recipe.5f.partial", "metrics.partial", ".space.17", "tensorboard/.17.partial", "metrics.jsonl", "tensorboard/events.out"):
        (tmp_path / name).touch()
    remove_left_over(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["events.out", "metrics.jsonl", "tensorboard"]


def test_one_process_of_a_run_writes_its_recipe(tmp_path: Path, run: tuple[Path, Recipe, RunInputs]) -> None:
    record_recipe(tmp_path / "run", run[1], writes=False)
    assert not (tmp_path / "run").exists()
    record_recipe(tmp_path / "run", run[1])
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.json"]
