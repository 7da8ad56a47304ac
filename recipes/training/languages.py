"""How many samples of each data set a run has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from megatron.core.datasets.blended_dataset import BlendedDataset
from numpy.typing import NDArray

from recipes.numbers.steps import weights_of
from recipes.rules.inputs import RunInputs
from recipes.rules.languages import seen_languages
from recipes.rules.schema import Recipe
from recipes.training.masking import MaskedSamples
from recipes.training.passes import OrderedSamples

LANGUAGES = "languages"  # the key of a checkpoint's facts


def samples_of_each(samples: Any, number: int, *, num_data_sets: int) -> NDArray[np.int64]:
    """(num_data_sets,), of the first so many samples of a run how many are of each data set."""
    if isinstance(samples, MaskedSamples):
        return samples_of_each(samples.samples, number, num_data_sets=num_data_sets)
    if isinstance(samples, OrderedSamples):
        which = samples.data_sets[:number]
    elif isinstance(samples, BlendedDataset):
        which = samples.dataset_index[:number]
    else:
        assert num_data_sets == 1
        return np.array([number], dtype=np.int64)
    return np.bincount(which, minlength=num_data_sets).astype(np.int64)


@dataclass(frozen=True)
class LanguageFacts:
    """What a checkpoint says of the languages of its run."""

    recipe: Recipe
    inputs: RunInputs

    def __call__(self, trainer: Any, number: int) -> Mapping[str, Any]:
        """Facts after so many samples; none where the recipe does not say which language a data set is in."""
        data, train = self.recipe.data, self.inputs.train
        if not data.languages:
            return {}
        seen = samples_of_each(trainer.datamodule._train_ds, number, num_data_sets=len(train))
        tokens = [manifest.facts["num_tokens"] for manifest in train]
        weights = weights_of(data, train)
        return {LANGUAGES: seen_languages(data.languages, tokens, weights, seen.tolist(), sequence_length=data.sequence_length)}


FactsOfSamples = Callable[[Any, int], Mapping[str, Any]]
