"""The inputs that a published run had, as far as its recipe says: what a plan is made of before there are any."""

from __future__ import annotations

from dataclasses import replace

from common.artifacts import Manifest
from data_prep.tokenizers.frame import FRONT
from recipes.rules.base_models import base_model
from recipes.rules.inputs import RunInputs, read_inputs
from recipes.rules.schema import Recipe

_TIED = {"tied": True, "copied": False, "transferred": False, "random": False}


def recipe_with_inputs(recipe: Recipe) -> tuple[Recipe, RunInputs]:
    """A recipe and its inputs, or those of the published run where it names neither a checkpoint nor data.

    Raises:
        ValueError: as `read_inputs` and `published_inputs`.
    """
    if recipe.model.checkpoint or recipe.data.train:
        return recipe, read_inputs(recipe)
    return published_inputs(recipe)


def published_inputs(recipe: Recipe) -> tuple[Recipe, RunInputs]:
    """Stand-ins for checkpoint and data, and the recipe that names them: the published model, and as many tokens as the run had.

    Raises:
        ValueError: if the recipe names no published model.
    """
    if recipe.model.base is None:
        raise ValueError(f"recipe {recipe.name} names no published model to use in the plan; give model.checkpoint and data.train")
    tied = None if recipe.model.output_layer is None else _TIED[recipe.model.output_layer]
    family, model = base_model(recipe.model.base, vocab_size=recipe.model.vocab_size, tied=tied)
    tokens = _published_tokens(recipe)
    shares = recipe.data.shares or recipe.data.blend or {"": 1.0}
    train = tuple(_data(round(tokens * share / sum(shares.values())), model["vocab_size"], recipe.data.bos) for share in shares.values())
    facts = {"method": recipe.model.method, "head": recipe.model.output_layer}
    data = replace(
        recipe.data,
        train=tuple(recipe.data.blend or (f"(published data{f' in {language}' if language else ''})" for language in shares)),
        languages=tuple(recipe.data.shares),
    )
    validation = {}
    if recipe.run.validate_every_steps is not None:
        data = replace(data, validation={"all": "(held-out data)"})
        validation = {"all": _data(tokens // 2000, model["vocab_size"], recipe.data.bos)}
    recipe = replace(recipe, model=replace(recipe.model, checkpoint=f"({recipe.model.base})"), data=data)
    checkpoint = Manifest(stage="conversion.hf_to_nemo", facts=facts)
    return recipe, RunInputs(family=family, model=model, checkpoint=checkpoint, train=train, validation=validation)


def published_steps(recipe: Recipe) -> int:
    """Steps of the published run."""
    if recipe.schedule.epochs is None or recipe.schedule.max_steps is not None:
        return recipe.total_steps
    samples = int(_published_tokens(recipe) * recipe.schedule.epochs) // recipe.data.sequence_length
    return recipe.schedule.batches.whole_steps(samples)


def _published_tokens(recipe: Recipe) -> int:
    if recipe.data.published_tokens is not None:
        return recipe.data.published_tokens
    if recipe.schedule.epochs is not None:
        raise ValueError(
            f"recipe {recipe.name} gives neither data.published_tokens nor data.train, so the amount of data is unknown; give one of them"
        )
    return recipe.run_tokens + recipe.tokens_per_step


def _data(tokens: int, vocab_size: int, bos: bool | None) -> Manifest:
    facts = {"num_tokens": tokens, "vocab_size": vocab_size, "tokenizer_digest": None, "eos_token_id": 0, "text_bytes": 4 * tokens}
    return Manifest(stage="data_prep.to_megatron", facts={**facts, FRONT: ["(bos)"] if bos else []})
