"""How many steps a recipe takes on its data: passes over data sets as samples and steps, shares of languages as weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.artifacts import Manifest
from data_prep.megatron.index import PREFIX, QA_STAGE, TokenFile, pair_lengths
from recipes.numbers.batches import Batches
from recipes.numbers.blend import Blend, apportion, num_pieces, num_windows, pack
from recipes.rules.languages import drawn_shares
from recipes.rules.schema import DataRecipe, FreezeRule, Recipe


def epochs_of(data: DataRecipe) -> tuple[float, ...]:
    """How often one pass over the data sees each data set."""
    return data.epochs * len(data.train) if len(data.epochs) == 1 else data.epochs or (1.0,) * len(data.train)


def weights_of(data: DataRecipe, train: Sequence[Manifest]) -> tuple[float, ...]:
    """Share of the samples from each data set: as given, by the shares of names or languages, or by tokens x epochs."""
    if data.weights:
        return data.weights
    if data.blend:
        return tuple(data.blend[Path(path).name] for path in data.train)
    seen = [manifest.facts["num_tokens"] * epochs for manifest, epochs in zip(train, epochs_of(data), strict=True)]
    if not data.shares and (data.sampling_exponent is None or not data.languages):
        return tuple(seen)
    of_language: dict[str, float] = {}
    for tokens, language in zip(seen, data.languages, strict=True):
        of_language[language] = of_language.get(language, 0) + tokens
    shares = data.shares or drawn_shares(of_language, data.sampling_exponent or 0.0)
    return tuple(shares[language] * tokens / of_language[language] for tokens, language in zip(seen, data.languages, strict=True))


def has_answers(manifest: Manifest) -> bool:
    """Whether a data set has questions with answers."""
    return manifest.stage == QA_STAGE


def samples_of(data: DataRecipe, train: Sequence[Manifest]) -> tuple[int, ...]:
    """Samples of each data set seen once."""
    return tuple(_num_samples(Path(path), manifest, data) for path, manifest in zip(data.train, train, strict=True))


def _num_samples(directory: Path, manifest: Manifest, data: DataRecipe) -> int:
    if not has_answers(manifest):
        if data.pad_documents and directory.is_dir():  # else of a published run, which is planned
            return int(num_pieces(TokenFile(directory / PREFIX).document_lengths, data.sequence_length).sum())
        return num_windows(manifest.facts["num_tokens"], data.sequence_length)
    if not data.document_mask:
        return int(manifest.facts["num_pairs"])
    return len(pack(pair_lengths(TokenFile(directory / PREFIX)), data.sequence_length + 1)) - 1


def blend_of(recipe: Recipe, train: Sequence[Manifest]) -> Blend:
    """The samples of a run that is given in passes over its data (`schedule.epochs`)."""
    sizes = samples_of(recipe.data, train)
    drawn = tuple(round(size * epochs) for size, epochs in zip(sizes, epochs_of(recipe.data), strict=True))
    assert recipe.schedule.epochs is not None
    return Blend(sizes, drawn, recipe.schedule.epochs)


def drawn_blend(recipe: Recipe, train: Sequence[Manifest], *, num_samples: int) -> Blend:
    """So many samples, of each data set its share, as one pass."""
    return Blend(samples_of(recipe.data, train), apportion(num_samples, weights_of(recipe.data, train)), 1.0)


def with_steps(recipe: Recipe, train: Sequence[Manifest]) -> Recipe:
    """The recipe with numbers of steps in place of passes: those of the run, and those until which something is frozen.

    A run takes the whole steps that its samples fill; what is frozen for a pass is frozen in every step that sees a sample of it.
    """
    schedule = recipe.schedule
    if schedule.epochs is None:
        return recipe
    blend, batches = blend_of(recipe, train), schedule.batches
    if schedule.max_steps is None and schedule.train_tokens is None:
        schedule = replace(schedule, max_steps=batches.whole_steps(blend.num_samples))
    return replace(
        recipe, schedule=schedule, freeze=tuple(_rule_with_step(rule, blend.samples_per_pass, batches) for rule in recipe.freeze)
    )


def _rule_with_step(rule: FreezeRule, samples_per_pass: int, batches: Batches) -> FreezeRule:
    if rule.until_epoch is None:
        return rule
    return replace(rule, until_step=batches.steps_covering(math.ceil(rule.until_epoch * samples_per_pass)), until_epoch=None)


def largest_steps(recipe: Recipe, train: Sequence[Manifest]) -> int | None:
    """The most steps that data x epochs allow; None where the recipe sets no limit."""
    batches = recipe.schedule.batches
    if recipe.schedule.epochs is not None:
        return batches.whole_steps(blend_of(recipe, train).num_samples)
    if not recipe.data.epochs:
        return None
    weights = weights_of(recipe.data, train)
    sizes = samples_of(recipe.data, train)
    allowed = [
        int(size * epochs) * sum(weights) / weight for size, epochs, weight in zip(sizes, epochs_of(recipe.data), weights, strict=True)
    ]
    return batches.whole_steps(int(min(allowed)))
