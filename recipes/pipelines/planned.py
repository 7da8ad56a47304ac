"""The model of a training before its inputs are made: with the shape of the one that they will be made from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.artifacts import Manifest
from common.cli import ROOT
from common.plain_files import read_json
from conversion.families import FAMILIES, language_config
from recipes.pipelines.file import Pipeline, Task, command_of, dependencies_of
from recipes.planner.parameters import PlannedModel
from recipes.rules.checks import planned_model
from recipes.rules.inputs import RunInputs, read_inputs
from recipes.rules.schema import Recipe


def planned_model_of(pipeline: Pipeline, task: Task, recipe: Recipe) -> PlannedModel | None:
    """The model of a training as the planner sees it, up to another vocabulary; None where nothing says of what shape it is."""
    try:
        inputs = inputs_of(recipe)
    except ValueError:  # they are still to be made
        source = next(_sources(pipeline, task), None)
        content = read_json(source / "config.json") if source is not None else {}
        family = FAMILIES.get(str(content.get("model_type")))
        if family is None or (recipe.model.factors is not None and not Path(recipe.model.factors).exists()):
            return None
        config = language_config(content)
        model = family.megatron_config(config, tied=bool(config.get("tie_word_embeddings", True)), source=str(source))
        inputs = RunInputs(family.model_type, model, Manifest(stage="conversion.hf_to_nemo"), ())
    return planned_model(recipe, inputs)


def inputs_of(recipe: Recipe) -> RunInputs:
    """The facts of a recipe's inputs, whose relative paths are below the checkout, where the training runs.

    Raises:
        ValueError: as `read_inputs`.
    """
    with contextlib.chdir(ROOT):
        return read_inputs(recipe)


def read_paths(words: Sequence[str]) -> Iterator[Path]:
    """What the words of a command name that is there, apart from its output."""
    for word in words[3 : words.index("--output") if "--output" in words else None]:
        name = word.partition("=")[2] if "=" in word else word
        if name and (path := ROOT / name).exists():
            yield path


def _sources(pipeline: Pipeline, task: Task) -> Iterator[Path]:
    """Hugging Face folders that are there and that a task's inputs are made from, the nearest first."""
    yield from (path for path in read_paths(command_of(pipeline, task)) if (path / "config.json").is_file())
    for need in dependencies_of(pipeline, task):
        yield from _sources(pipeline, need)
