"""Samples of which some tokens are hidden, and have to be predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule
from torch import Tensor
from torch.utils.data import Dataset

from recipes.rules.masking import MaskVocabulary, mask_sample
from recipes.rules.schema import MaskingRecipe
from recipes.training.passes import PassesDataModule


class MaskedSamples(Dataset[Mapping[str, Tensor]]):
    """Samples of text, each with masks that follow from its number in the run.

    Attributes:
        samples: the same without masks.
    """

    def __init__(self, samples: Any, vocabulary: MaskVocabulary, masking: MaskingRecipe, *, seed: int) -> None:
        self.samples, self._vocabulary, self._masking, self._seed = samples, vocabulary, masking, seed

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Mapping[str, Tensor]:
        found: Mapping[str, Tensor] = self.samples[number]
        # What fills up a sample is special, so it is never chosen.
        seen, chosen = mask_sample(found["tokens"].numpy(), self._vocabulary, self._masking, seed=self._seed, number=number)
        # The token itself is predicted, not the next one.
        return {**found, "tokens": torch.from_numpy(seen), "labels": found["tokens"], "loss_mask": torch.from_numpy(chosen).float()}


class _Masking:
    """A data module of NeMo whose training samples are masked."""

    _train_ds: Any
    seed: int

    def __init__(self, vocabulary: MaskVocabulary, masking: MaskingRecipe, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._vocabulary, self._masking = vocabulary, masking

    def build(self, *limits: Any, **named_limits: Any) -> None:
        """Build the data sets; see NeMo's class for the arguments."""
        super().build(*limits, **named_limits)  # type: ignore[misc]
        self._train_ds = MaskedSamples(self._train_ds, self._vocabulary, self._masking, seed=self.seed)


class MaskedDataModule(_Masking, PreTrainingDataModule):
    """NeMo's data module, masked."""


class MaskedPassesDataModule(_Masking, PassesDataModule):
    """The training data in passes, each with other masks."""
