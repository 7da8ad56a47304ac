"""The facts of a run's checkpoint and data sets, read from their manifests."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from common.artifacts import Manifest, check_files, require_manifest
from common.own_files import require_all_own
from common.plain_files import read_json
from data_prep.megatron.index import open_dataset, open_training_data
from recipes.rules.schema import Recipe, raise_all

Found = TypeVar("Found")
CHECKPOINT_STAGES = ("conversion.hf_to_nemo", "conversion.change_layout", "recipes.train")


@dataclass(frozen=True)
class RunInputs:
    """The facts of the checkpoint and the data sets of a run.

    Attributes:
        family: model family, a key of `conversion.families.FAMILIES`.
        model: its sizes in Megatron's names (`context/model.json`).
        checkpoint: manifest of the checkpoint that the run starts from.
        train: manifest of each training set, in the recipe's order.
        validation: manifest of each validation set, by language.
    """

    family: str
    model: Mapping[str, Any]
    checkpoint: Manifest
    train: tuple[Manifest, ...]
    validation: Mapping[str, Manifest] = field(default_factory=dict)


def read_inputs(recipe: Recipe) -> RunInputs:
    """Read the manifests of a recipe's inputs; the contents of large files are not read.

    Raises:
        ValueError: listing every input that is missing, truncated or written by another stage.
    """
    problems: list[str] = []
    checkpoint_dir = Path(recipe.model.checkpoint)
    if not recipe.model.checkpoint:
        problems.append("model.checkpoint is missing; give it in the file or as model.checkpoint=VALUE")
    if not recipe.data.train:
        problems.append("data.train names no data set; give outputs of data_prep.to_megatron in the recipe or as data.train=[VALUE,...]")
    checkpoint = _collect(problems, _open_checkpoint, checkpoint_dir) if recipe.model.checkpoint else None
    train = [_collect(problems, open_training_data, Path(path)) for path in recipe.data.train]
    validation = {language: _collect(problems, open_dataset, Path(path)) for language, path in recipe.data.validation.items()}
    raise_all(problems, subject=f"recipe {recipe.name}")
    assert checkpoint is not None
    description = read_json(checkpoint_dir / "context" / "model.json")
    return RunInputs(
        family=description["family"],
        model=description["config"],
        checkpoint=checkpoint,
        train=tuple(opened[1] for opened in train if opened is not None),
        validation={language: opened[1] for language, opened in validation.items() if opened is not None},
    )


def _open_checkpoint(directory: Path) -> Manifest:
    manifest = require_manifest(directory, stages=CHECKPOINT_STAGES, made_by="python -m conversion.hf_to_nemo")
    check_files(directory, manifest, contents=False)
    if manifest.stage == "conversion.change_layout" and manifest.facts["layout"] != "nemo":
        raise ValueError(
            f"{directory} is in the layout {manifest.facts['layout']}; bring it into NeMo's with `python -m conversion.change_layout"
            f" --input {shlex.quote(str(directory))} --to nemo --output DIR`"
        )
    require_all_own(directory / "context")  # which goes into every checkpoint of the run
    return manifest


def _collect(problems: list[str], read: Callable[[Path], Found], path: Path) -> Found | None:
    try:
        return read(path)
    except ValueError as error:
        problems.append(str(error))
        return None
