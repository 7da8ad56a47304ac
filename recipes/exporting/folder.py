"""The folder of an exported recipe: what starts the program, its checkpoint where it has a layout of its own, and a list of what it cannot do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from common.artifacts import Manifest, staged_directory, write_manifest
from common.plain_files import write_text
from conversion.layouts.moving import MEGATRON_BRIDGE, change, folder_name
from data_prep.tokenizers.files import tokenizer_files
from recipes.exporting import limits
from recipes.exporting.automodel_config import automodel_config
from recipes.exporting.bridge_config import bridge_config
from recipes.exporting.common import manifests_by_path
from recipes.exporting.lm_arguments import lm_arguments, lm_script
from recipes.rules.checks import padded_vocab_size, trained_names
from recipes.rules.freezing import NEVER, first_trained_steps
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe, raise_all

STAGE = "recipes.export"
CHECKPOINT, RUN, CONFIG = "checkpoint", "run", "config.yaml"
LIST_NAME = "not_exported.md"
_RUNNER = Path(__file__).with_name("bridge_train.py")


def export(recipe: Recipe, inputs: RunInputs, output_dir: Path, *, target: str) -> tuple[Manifest, list[str]]:
    """Write the folder.

    Args:
        recipe: with its steps, as `recipes.rules.checks.check_run` gives it.
        target: program, a key of `recipes.exporting.limits.PROGRAMS`.

    Returns:
        Its manifest, and the sentences on what the program does otherwise.

    Raises:
        ValueError: listing what makes the recipe another run in that program; and all that the change of the layout refuses.
    """
    raise_all(limits.refusals(recipe, inputs, target=target), subject=f"recipe {recipe.name} for {limits.PROGRAMS[target]}")
    sentences = limits.export_differences(
        recipe, target=target, num_padding_rows=padded_vocab_size(recipe, inputs) - inputs.model["vocab_size"]
    )
    final = Path(output_dir).absolute()
    with staged_directory(output_dir) as staging:
        if target == limits.AUTOMODEL:
            _write_yaml(staging / CONFIG, automodel_config(recipe, inputs, run_dir=final / RUN))
        else:
            _write_for_megatron(recipe, inputs, staging, final=final, target=target)
        write_text(staging / LIST_NAME, _list(recipe, sentences, target=target))
        manifest = write_manifest(
            staging,
            stage=STAGE,
            facts={"recipe": recipe.name, "target": target, "steps": recipe.total_steps, "not_exported": sentences},
            arguments={"to": target},
            inputs={path: found.digest for path, found in manifests_by_path(recipe, inputs).items()},
            hash_files=False,
        )
    return manifest, sentences


def _write_for_megatron(recipe: Recipe, inputs: RunInputs, staging: Path, *, final: Path, target: str) -> None:
    """The checkpoint in the program's layout, and what starts it."""
    source = Path(recipe.model.checkpoint)
    change(source, staging / CHECKPOINT, layout=target, placed_at=final / CHECKPOINT)
    folder = final / CHECKPOINT / folder_name(target, step=inputs.checkpoint.facts.get("step", 0))
    places = {
        "checkpoint": final / CHECKPOINT,
        "run_dir": final / RUN,
        "tokenizer": folder / "context" / "hf" if tokenizer_files(source / "context" / "hf") else None,
    }
    if target == MEGATRON_BRIDGE:
        _write_yaml(staging / CONFIG, bridge_config(recipe, inputs, **places))  # type: ignore[arg-type]
        write_text(staging / "parameters.json", json.dumps(_parameters(recipe, inputs), indent=2) + "\n")
        shutil.copyfile(_RUNNER, staging / "train.py")
    else:
        write_text(staging / "train.sh", lm_script(recipe, lm_arguments(recipe, inputs, **places)))  # type: ignore[arg-type]
        (staging / "train.sh").chmod(0o755)


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    write_text(path, yaml.safe_dump(content, sort_keys=False, width=120))


def _parameters(recipe: Recipe, inputs: RunInputs) -> dict[str, object]:
    """What Megatron-Bridge's configuration has no words for."""
    steps = first_trained_steps(recipe.freeze, trained_names(recipe, inputs), tied=inputs.model["share_embeddings_and_output_weights"])
    return {"vocab_size": inputs.model["vocab_size"], "frozen": [name for name, step in steps.items() if step == NEVER]}


def _list(recipe: Recipe, sentences: list[str], *, target: str) -> str:
    program = limits.PROGRAMS[target]
    lines = [f"# Differences in {program} from this recipe: {recipe.name}", ""]
    lines += [f"- {sentence}" for sentence in sentences] or ["Nothing."]
    return "\n".join(lines) + "\n"
