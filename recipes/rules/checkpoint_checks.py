"""Whether a checkpoint is the one that a recipe is for: its shape, its vocabulary, how its embeddings were made."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from conversion.checkpoints.factors import read_factors
from conversion.checkpoints.untrained_rows import end_of_text_sentences
from conversion.inspection.deep import TOKEN_TABLES
from recipes.rules.base_models import BASE_MODELS, SHAPE_KEYS, base_model
from recipes.rules.schema import MASKED, Recipe

if TYPE_CHECKING:
    from recipes.rules.inputs import RunInputs


def checkpoint_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """What differs between the checkpoint and what the recipe says of it."""
    expected, path = recipe.model, recipe.model.checkpoint
    problems = []
    if expected.base is not None and expected.base not in BASE_MODELS:
        [nearest] = difflib.get_close_matches(expected.base, list(BASE_MODELS), n=1, cutoff=0.0)
        problems.append(f"model.base is {expected.base!r}; did you mean {nearest}? The published models are {', '.join(BASE_MODELS)}")
    elif expected.base is not None and (differences := _shape_differences(expected.base, inputs)):
        problems.append(
            f"the recipe is for {expected.base}, but the checkpoint {path} has {'; '.join(differences)};"
            " give that model's checkpoint, or model.base=null to train another model"
        )
    rows = inputs.model["vocab_size"]
    if expected.vocab_size is not None and expected.vocab_size != rows:
        problems.append(
            f"the recipe is for {expected.vocab_size:,} tokens, but the checkpoint {path} has {rows:,}; set model.vocab_size={rows}, or make"
            " the checkpoint with the recipe's tokenizer"
        )
    facts = inputs.checkpoint.facts
    for option, value, found in (
        ("--method", expected.method, facts.get("method")),
        ("--output-layer", expected.output_layer, facts.get("head")),
    ):
        if value is not None and value != found:
            key = option[2:].replace("-", "_")
            problems.append(
                f"the recipe is for `conversion.transfer {option} {value}`, but the checkpoint {path} was made with {found or 'none'};"
                f" make it so, or set model.{key}={found or 'null'}"
            )
    if expected.fallback == "random" and (means := facts.get("num_rows_by_origin", {}).get("fallback: mean")):
        problems.append(
            f"the recipe is for `conversion.transfer --fallback random`, but {means:,} rows of the checkpoint {path} are means of source tokens;"
            " make it so, or set model.fallback=null"
        )
    return problems


def checkpoint_warnings(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """Sentences about what may train, but deserves a look: an end of text whose row nothing has trained."""
    from conversion.checkpoints.nemo_checkpoint import PREFIX, WEIGHTS
    from conversion.formats.dist_checkpoint import read_dist_checkpoint

    if not Path(recipe.model.checkpoint).is_dir() or inputs.checkpoint.stage == "recipes.train":
        return []  # a published run has no checkpoint, and what was trained on has no row without training
    tensors = read_dist_checkpoint(Path(recipe.model.checkpoint) / WEIGHTS, prefix=PREFIX)
    matrices = {name: tensors[name] for name in TOKEN_TABLES if name in tensors}
    ends = dict.fromkeys(manifest.facts["eos_token_id"] for manifest in inputs.train if "eos_token_id" in manifest.facts)
    return end_of_text_sentences(matrices, ends, inputs.model)


def factor_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """What keeps a token table from being trained as factors, of a published run too, which has no files."""
    expected, model = recipe.model, inputs.model
    if expected.factors is None:
        if expected.factorised_size is None:
            return []
        if expected.checkpoint and Path(expected.checkpoint).is_dir():
            return [f"the recipe trains factors of {expected.factorised_size} dimensions; give the file of the transfer as model.factors"]
        width = model["hidden_size"]
        fits = 1 <= expected.factorised_size <= width
        problems = [] if fits else [f"model.factorised_size is {expected.factorised_size}; expected 1 to {width}, the width of the model"]
        return problems + _not_with_factors(recipe, inputs, "model.factorised_size")
    try:
        found = read_factors(Path(expected.factors))
    except ValueError as error:
        return [str(error)]
    problems = []
    size, shape = found["primitives"].shape[0], (found["coordinates"].shape[0], found["primitives"].shape[1])
    if expected.factorised_size not in (None, size):
        problems.append(f"the recipe trains factors of {expected.factorised_size} dimensions, but {expected.factors} has {size}")
    if shape != (model["vocab_size"], model["hidden_size"]):
        problems.append(
            f"{expected.factors} gives a table of {shape[0]} x {shape[1]}, but the checkpoint has {model['vocab_size']} x {model['hidden_size']};"
            " both have to come from the same transfer"
        )
    return problems + _not_with_factors(recipe, inputs, "model.factors")


def _not_with_factors(recipe: Recipe, inputs: RunInputs, key: str) -> list[str]:
    problems = []
    if not inputs.model["share_embeddings_and_output_weights"]:
        problems.append(f"{key} needs tied embeddings; make the checkpoint with conversion.transfer --output-layer tied")
    for other, found, legal in (
        ("parallel.pipeline_parallel_size", recipe.parallel.pipeline_parallel_size, (1,)),
        ("objective", recipe.objective, ("next_token", MASKED)),
    ):
        if found not in legal:
            problems.append(f"{other} is {found}, but {key} is trained with {' or '.join(map(str, legal))} only")
    return problems


def _shape_differences(base: str, inputs: RunInputs) -> list[str]:
    family, shape = base_model(base)
    if family != inputs.family:
        return [f"family {inputs.family} instead of {family}"]
    return [
        f"{key} {inputs.model.get(key)} instead of {shape[key]}"
        for key in SHAPE_KEYS
        if key in shape and inputs.model.get(key) != shape[key]
    ]
