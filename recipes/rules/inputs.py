"""The facts of a run's checkpoint and data sets, read from their manifests."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from common.artifacts import Manifest, check_files, read_manifest, require_manifest
from common.own_files import require_all_own
from common.plain_files import read_json
from conversion.checkpoints.for_engine import for_engine
from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.checkpoints.hf_files import CONFIG_NAME
from conversion.embeddings.layers import find_token_layers
from conversion.families import language_config
from data_prep.megatron.index import open_dataset, open_training_data
from data_prep.tokenizers.files import tokenizer_files
from data_prep.tokenizers.plain_tokenizer import tokenizer_identity
from recipes.rules.schema import Recipe, raise_all

Found = TypeVar("Found")
CHECKPOINT_STAGES = ("conversion.hf_to_nemo", "conversion.change_layout", "recipes.train")


@dataclass(frozen=True)
class RunInputs:
    """The facts of the checkpoint and the data sets of a run.

    Attributes:
        family: model family, a key of `conversion.families.FAMILIES`.
        model: its sizes in Megatron's names (`context/model.json`).
        checkpoint: manifest of the checkpoint that the run starts from; of a Hugging Face folder, what it will be once it is converted.
        train: manifest of each training set, in the recipe's order.
        validation: manifest of each validation set, by language.
    """

    family: str
    model: Mapping[str, Any]
    checkpoint: Manifest
    train: tuple[Manifest, ...]
    validation: Mapping[str, Manifest] = field(default_factory=dict)


def read_inputs(recipe: Recipe, *, for_transformers: bool = False) -> RunInputs:
    """Read the manifests of a recipe's inputs, or the header of a Hugging Face folder; the contents of large files are not read.

    Args:
        for_transformers: take a Hugging Face folder of any family, for a program that trains it as it is; of `model` only the rows of the
            vocabulary and the positions are then known.

    Raises:
        ValueError: listing every input that is missing, truncated or written by another stage.
    """
    problems: list[str] = []
    checkpoint_dir = Path(recipe.model.checkpoint)
    if not recipe.model.checkpoint:
        problems.append("model.checkpoint is missing; give it in the file or as model.checkpoint=VALUE")
    if not recipe.data.train:
        problems.append("data.train names no data set; give outputs of data_prep.to_megatron in the recipe or as data.train=[VALUE,...]")
    checkpoint = (
        _collect(problems, _open_for_transformers if for_transformers else _open_checkpoint, checkpoint_dir)
        if recipe.model.checkpoint
        else None
    )
    train = [_collect(problems, open_training_data, Path(path)) for path in recipe.data.train]
    validation = {language: _collect(problems, open_dataset, Path(path)) for language, path in recipe.data.validation.items()}
    raise_all(problems, subject=f"recipe {recipe.name}")
    assert checkpoint is not None
    family, model, manifest = checkpoint
    return RunInputs(
        family=family,
        model=model,
        checkpoint=manifest,
        train=tuple(opened[1] for opened in train if opened is not None),
        validation={language: opened[1] for language, opened in validation.items() if opened is not None},
    )


def _open_checkpoint(directory: Path) -> tuple[str, Mapping[str, Any], Manifest]:
    """Family, sizes in Megatron's names, and manifest."""
    if (directory / CONFIG_NAME).is_file():
        return _open_hugging_face(directory)
    manifest = require_manifest(directory, stages=CHECKPOINT_STAGES, made_by="python -m conversion.hf_to_nemo")
    check_files(directory, manifest, contents=False)
    if manifest.stage == "conversion.change_layout" and manifest.facts["layout"] != "nemo":
        raise ValueError(
            f"{directory} is in the layout {manifest.facts['layout']}; convert it to NeMo's with `python -m conversion.change_layout"
            f" --input {shlex.quote(str(directory))} --to nemo --output DIR`"
        )
    require_all_own(directory / "context")  # which goes into every checkpoint of the run
    description = read_json(directory / "context" / "model.json")
    return description["family"], description["config"], manifest


def _open_hugging_face(directory: Path) -> tuple[str, Mapping[str, Any], Manifest]:
    """As it will be once `conversion.hf_to_nemo` has converted it."""
    made = for_engine(HFCheckpoint.open(directory))
    return made.family.model_type, made.config, _manifest_of_folder(directory)


def _open_for_transformers(directory: Path) -> tuple[str, Mapping[str, Any], Manifest]:
    """Model type, rows and positions, and what is known of the folder."""
    if not (directory / CONFIG_NAME).is_file():
        raise ValueError(
            f"model.checkpoint is {directory}, which has no {CONFIG_NAME}; this program trains Hugging Face folders: give one, or make it of a"
            f" checkpoint in NeMo's layout with `python -m conversion.nemo_to_hf --input {shlex.quote(str(directory))} --output DIR`"
        )
    hf = HFCheckpoint.open(directory)
    config = language_config(hf.config)
    model = {"vocab_size": find_token_layers(hf).num_rows, "max_position_embeddings": config.get("max_position_embeddings", math.inf)}
    return hf.model_type, model, _manifest_of_folder(directory)


def _manifest_of_folder(directory: Path) -> Manifest:
    """What a Hugging Face folder's own manifest and its tokenizer say."""
    manifest = read_manifest(directory)
    facts = dict(manifest.facts) if manifest is not None else {}
    if "tokenizer_digest" not in facts and tokenizer_files(directory):
        facts["tokenizer_digest"] = tokenizer_identity(directory).digest
    return Manifest(stage=CHECKPOINT_STAGES[0], facts=facts)


def _collect(problems: list[str], read: Callable[[Path], Found], path: Path) -> Found | None:
    try:
        return read(path)
    except ValueError as error:
        problems.append(str(error))
        return None
