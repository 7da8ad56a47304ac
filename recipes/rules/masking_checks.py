"""The rules between the objective of a recipe and the kind of its model: masked tokens are an encoder's, next ones a causal model's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conversion.families import FAMILIES
from recipes.numbers.steps import has_answers
from recipes.rules.masking import CHECKPOINT_TOKENIZER, read_mask_vocabulary
from recipes.rules.schema import MASKED, Recipe

if TYPE_CHECKING:
    from recipes.rules.inputs import RunInputs


def masking_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """What keeps a model from being trained with the objective."""
    is_encoder, path = FAMILIES[inputs.family].masked, recipe.model.checkpoint or inputs.family
    if recipe.objective != MASKED:
        problems = []
        if is_encoder:
            problems.append(
                f"the objective is {recipe.objective}, but the checkpoint {path} is of the family {inputs.family}, whose tokens see those behind"
                f" them; set objective={MASKED}, or give a causal model"
            )
        if recipe.masking is not None:
            problems.append(
                f"masking is given, but the objective {recipe.objective} hides no tokens; set objective={MASKED}, or leave it out"
            )
        if recipe.data.pad_documents:
            problems.append(f"data.pad_documents fills up samples of the objective {MASKED}, not of {recipe.objective}; leave it out")
        return problems
    if not is_encoder:
        encoders = ", ".join(name for name, family in FAMILIES.items() if family.masked)
        return [
            f"the objective is {MASKED}, but the checkpoint {path} is of the family {inputs.family}, whose tokens do not see those behind"
            f" them; give an encoder ({encoders}), or leave the objective out"
        ]
    return (
        _layout_problems(recipe)
        + _padding_problems(recipe)
        + _data_problems(recipe, inputs)
        + _share_problems(recipe)
        + _tokenizer_problems(recipe)
    )


def _layout_problems(recipe: Recipe) -> list[str]:
    problems = []
    if recipe.parallel.context_parallel_size > 1:
        problems.append(
            f"parallel.context_parallel_size is {recipe.parallel.context_parallel_size}, but samples of the objective {MASKED} are not cut"
            " among ranks; set it to 1"
        )
    if recipe.lora is not None:
        problems.append(f"lora adapts causal models, not those of the objective {MASKED}; leave it out")
    return problems


def _padding_problems(recipe: Recipe) -> list[str]:
    if recipe.data.pad_documents and not recipe.data.document_mask:
        return ["data.pad_documents makes each document a sample that ends before what fills it up; set data.document_mask=true too"]
    return []


def _data_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    return [
        f"the data set {path} has questions with answers, which causal models learn; give the objective {MASKED} text of data_prep.to_megatron"
        for path, manifest in zip(recipe.data.train, inputs.train, strict=True)
        if has_answers(manifest)
    ]


def _share_problems(recipe: Recipe) -> list[str]:
    masking = recipe.masking
    if masking is None or masking.hidden + masking.replaced <= 1:
        return []
    return [f"masking.hidden and masking.replaced are {masking.hidden + masking.replaced:g} together; expected at most 1"]


def _tokenizer_problems(recipe: Recipe) -> list[str]:
    directory = Path(recipe.model.checkpoint) / CHECKPOINT_TOKENIZER
    if not recipe.model.checkpoint or not directory.is_dir():  # of a published run, which is planned
        return []
    try:
        vocabulary = read_mask_vocabulary(directory)
    except ValueError as error:
        return [str(error)]
    if recipe.data.pad_documents and vocabulary.padding_id is None:
        return [
            f"data.pad_documents fills up samples with the padding token, but the tokenizer in {directory} has none; set its pad_token, or"
            " leave pad_documents out"
        ]
    if recipe.masking is not None and recipe.masking.whole_words and not vocabulary.begins_word.any():
        return [
            f"masking.whole_words needs a tokenizer that marks where words begin, but no token of that in {directory} begins with a space;"
            " leave it out"
        ]
    return []
