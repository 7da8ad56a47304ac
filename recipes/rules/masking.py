"""Masked language modelling (Devlin et al. 2019; drawn anew at every pass as in RoBERTa, Liu et al. 2019): which tokens are hidden, and behind what.

What is drawn for a sample follows from the seed and the sample's number in the run, so that neither a resumed run nor another layout
sees other masks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conversion.families import FAMILIES
from data_prep.tokenizers.files import load_tokenizer
from data_prep.tokenizers.token_bytes import bytes_of, spelling_of
from recipes.numbers.steps import has_answers
from recipes.rules.schema import MASKED, MaskingRecipe, Recipe

if TYPE_CHECKING:
    from recipes.rules.inputs import RunInputs

CHECKPOINT_TOKENIZER = Path("context/hf")  # relative to a checkpoint
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class MaskVocabulary:
    """What masking has to know of a tokenizer.

    Attributes:
        mask_id: the token that others are hidden behind.
        is_ordinary: (num_tokens,), False for special tokens, which are neither hidden nor put in the place of others.
        begins_word: (num_tokens,), whether the text of a token begins with a space.
        padding_id: the token that fills up samples, if there is one.
    """

    mask_id: int
    is_ordinary: Flags
    begins_word: Flags
    padding_id: int | None = None

    @cached_property
    def ordinary(self) -> Ids:
        """(num_ordinary,) ids of the tokens that are not special."""
        return np.flatnonzero(self.is_ordinary)


def read_mask_vocabulary(directory: Path) -> MaskVocabulary:
    """That of the tokenizer in a folder.

    Raises:
        ValueError: if there is none, or it has no mask token.
    """
    tokenizer = load_tokenizer(directory)
    if tokenizer.mask_token_id is None:
        raise ValueError(
            f"the tokenizer in {directory} has no mask token, which masked language modelling needs; set its mask_token (<mask>), or"
            " train one with data_prep.train_tokenizer --mask-token, and make checkpoint and data with it"
        )
    spelling, tokens = spelling_of(json.loads(tokenizer.backend_tokenizer.to_str())), tokenizer.get_vocab()
    is_ordinary, begins_word = (np.zeros(max(tokens.values()) + 1, dtype=bool) for _ in range(2))
    for token, token_id in tokens.items():
        is_ordinary[token_id] = True
        begins_word[token_id] = bytes_of(token, spelling)[:1].isspace()
    is_ordinary[tokenizer.all_special_ids] = False
    return MaskVocabulary(tokenizer.mask_token_id, is_ordinary, begins_word, tokenizer.pad_token_id)


def predicted_share(recipe: Recipe) -> float:
    """Of the tokens of a run, those that have a loss: what is masked, or all."""
    return (recipe.masking or MaskingRecipe()).share if recipe.objective == MASKED else 1.0


def masks_of(recipe: Recipe) -> tuple[MaskVocabulary, MaskingRecipe] | None:
    """What a run masks, and how; None where its objective is another."""
    if recipe.objective != MASKED:
        return None
    return read_mask_vocabulary(Path(recipe.model.checkpoint) / CHECKPOINT_TOKENIZER), recipe.masking or MaskingRecipe()


def mask_sample(tokens: Ids, vocabulary: MaskVocabulary, masking: MaskingRecipe, *, seed: int, number: int) -> tuple[Ids, Flags]:
    """What the model sees of a sample, and which tokens it has to predict.

    Args:
        tokens: (length,)
        number: of the sample in the run, counted from 0 over all passes.

    Returns:
        Ids and flags, (length,) each.
    """
    generator = np.random.default_rng([seed, number])
    chosen = _chosen(tokens, vocabulary, masking, generator)
    draws, ordinary = generator.random(len(tokens)), vocabulary.ordinary
    others = ordinary[generator.integers(len(ordinary), size=len(tokens))]
    seen = np.where(draws < masking.hidden, vocabulary.mask_id, np.where(draws < masking.hidden + masking.replaced, others, tokens))
    return np.where(chosen, seen, tokens), chosen


def _chosen(tokens: Ids, vocabulary: MaskVocabulary, masking: MaskingRecipe, generator: np.random.Generator) -> Flags:
    draws, is_ordinary = generator.random(len(tokens)), vocabulary.is_ordinary[tokens]
    if masking.whole_words:  # what follows a special token begins a word too
        begins = vocabulary.begins_word[tokens] | ~is_ordinary
        begins[1:] |= ~is_ordinary[:-1]
        draws = draws[np.cumsum(begins) - begins[0]]
    chosen: Flags = (draws < masking.share) & is_ordinary
    return chosen


def parts_of_sample(tokens: Ids, vocabulary: MaskVocabulary, *, num_parts: int, number: int) -> Ids:
    """Which part of a held-out sample each token is of, -1 for special tokens: the parts are equally large and drawn by the number alone.

    With each part hidden in turn every token is predicted once, from most of the others.

    Args:
        tokens: (length,)
        number: of the sample.

    Returns:
        (length,)
    """
    places = np.flatnonzero(vocabulary.is_ordinary[tokens])
    parts = np.full(len(tokens), -1, dtype=np.int64)
    parts[places] = np.random.default_rng(number).permutation(len(places)) % num_parts
    return parts


def masking_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """What keeps a model from being trained with the objective."""
    is_encoder, path = FAMILIES[inputs.family].masked, recipe.model.checkpoint or inputs.family
    if recipe.objective != MASKED:
        problems = []
        if is_encoder:
            problems.append(
                f"the objective is {recipe.objective}, but the checkpoint {path} is of the family {inputs.family}, which is bidirectional;"
                f" set objective={MASKED}, or give a causal model"
            )
        if recipe.masking is not None:
            problems.append(
                f"masking is given, but the objective {recipe.objective} masks no tokens; set objective={MASKED}, or leave it out"
            )
        if recipe.data.pad_documents:
            problems.append(f"data.pad_documents is for the objective {MASKED}, not {recipe.objective}; leave it out")
        return problems
    if not is_encoder:
        encoders = ", ".join(name for name, family in FAMILIES.items() if family.masked)
        return [
            f"the objective is {MASKED}, but the checkpoint {path} is of the family {inputs.family}, which is causal;"
            f" give an encoder ({encoders}), or leave the objective out"
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
            f"parallel.context_parallel_size is {recipe.parallel.context_parallel_size}, but the objective {MASKED} does not support"
            " context parallelism; set it to 1"
        )
    if recipe.lora is not None:
        problems.append(f"lora adapts causal models, not those of the objective {MASKED}; leave it out")
    return problems


def _padding_problems(recipe: Recipe) -> list[str]:
    if recipe.data.pad_documents and not recipe.data.document_mask:
        return ["data.pad_documents pads samples of single documents, which attention must not see; also set data.document_mask=true"]
    return []


def _data_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    return [
        f"the data set {path} has question-answer pairs, which are for causal models; give the objective {MASKED} text of data_prep.to_megatron"
        for path, manifest in zip(recipe.data.train, inputs.train, strict=True)
        if has_answers(manifest)
    ]


def _share_problems(recipe: Recipe) -> list[str]:
    masking = recipe.masking
    if masking is None or masking.hidden + masking.replaced <= 1:
        return []
    return [f"masking.hidden and masking.replaced add up to {masking.hidden + masking.replaced:g}; expected at most 1"]


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
            f"data.pad_documents pads samples with the padding token, but the tokenizer in {directory} has none; set its pad_token, or"
            " leave pad_documents out"
        ]
    if recipe.masking is not None and recipe.masking.whole_words and not vocabulary.begins_word.any():
        return [
            f"masking.whole_words needs a tokenizer that marks where words begin, but no token of that in {directory} begins with a space;"
            " leave it out"
        ]
    return []
