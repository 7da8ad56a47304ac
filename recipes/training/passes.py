"""Questions with their answers as samples, and Megatron's data sets in passes: each sample of a pass as often as the recipe says, in the order of `recipes.numbers.blend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from data_prep.megatron.index import TokenFile, pair_lengths
from recipes.numbers.blend import Blend, Order, pack, sample_order
from recipes.training.documents import DocumentSamples, PaddedDocuments


class OrderedSamples(Dataset[Mapping[str, Tensor]]):
    """The samples of several data sets in a given order.

    Args:
        data_sets: each cut into the samples that one pass over it has.
    """

    def __init__(self, data_sets: Sequence[Any], order: Order) -> None:
        self._data_sets, self._order = data_sets, order

    def __len__(self) -> int:
        return len(self._order.samples)

    def place(self, number: int) -> tuple[Any, int]:
        """The data set of a sample, and its number there."""
        return self._data_sets[self._order.data_sets[number]], int(self._order.samples[number])

    @property
    def data_sets(self) -> NDArray[np.uint16]:
        """(samples,), number of the data set of each."""
        return self._order.data_sets

    def tokens_seen(self, sequence_length: int) -> NDArray[np.int64]:
        """(samples + 1,), tokens of text in the first so many samples; what fills up answers and documents is none."""
        counts = np.full(len(self), sequence_length, dtype=np.int64)
        for which, data_set in enumerate(self._data_sets):
            if isinstance(data_set, Answers | PaddedDocuments):
                mine = self._order.data_sets == which
                counts[mine] = data_set.num_tokens[self._order.samples[mine]]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def __getitem__(self, number: int) -> Mapping[str, Tensor]:
        data_set, sample = self.place(number)
        found: Mapping[str, Tensor] = data_set[sample]
        return found


class PassesDataModule(PreTrainingDataModule):
    """NeMo's data module, with the training data in passes.

    Its sampler hands out sample n of the run whatever the number of ranks, so neither an interruption nor another number of ranks
    repeats or loses one.

    Args:
        padding_id: with which documents are filled up that are samples each; None where they are packed.
    """

    def __init__(
        self, train: Sequence[Path], blend: Blend, *, with_answers: Sequence[bool] = (), padding_id: int | None = None, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._padding_id = padding_id
        self._train, self._blend = [str(prefix) for prefix in train], blend
        self._with_answers = with_answers or [False] * len(train)

    def build(self, *limits: Any, **named_limits: Any) -> None:
        """Build the data sets; see NeMo's class for the arguments, which are about validation here."""
        validation = self.build_kwargs["blend_per_split"][1]
        self.build_kwargs["blend_per_split"] = [None, validation, None]
        super().build(*limits, **named_limits)
        data_sets = [self._data_set(prefix, has_answers) for prefix, has_answers in zip(self._train, self._with_answers, strict=True)]
        found = tuple(map(len, data_sets))
        assert found == self._blend.sizes, f"Megatron cuts {found} samples; planned were {self._blend.sizes}"
        self._train_ds = OrderedSamples(data_sets, sample_order(self._blend, seed=self.seed))

    def _data_set(self, prefix: str, has_answers: bool) -> Any:
        """The samples of one data set, each once."""
        if has_answers:
            packed = self.dataset_cls is DocumentSamples
            return Answers(prefix, sequence_length=self.seq_length, eos_token_id=self.tokenizer.eod, packed=packed)
        if self._padding_id is not None:
            return PaddedDocuments(prefix, sequence_length=self.seq_length, padding_id=self._padding_id)
        self.build_kwargs["blend_per_split"] = [([prefix], None), None, None]
        return BlendedMegatronDatasetBuilder(
            self.dataset_cls, [None, 0, 0], is_built_on_rank=lambda: True, config=self.gpt_dataset_config
        ).build()[0]


class Answers(Dataset[Mapping[str, Tensor]]):
    """Each pair a sample, or several that do not see each other, filled up with end-of-text tokens.

    Args:
        prefix: path of what `data_prep.question_answers` wrote, without suffix.
        packed: whether a sample takes as many pairs as fit; the positions of each, and of what fills up, then begin at 0.

    Attributes:
        prefix: as given.
    """

    def __init__(self, prefix: str, *, sequence_length: int, eos_token_id: int, packed: bool = False) -> None:
        self.prefix, self._tokens = prefix, TokenFile(Path(prefix))
        self._length, self._eos_token_id, self._packed = sequence_length, eos_token_id, packed
        lengths = pair_lengths(self._tokens)
        self._bounds = pack(lengths, sequence_length + 1) if packed else np.arange(len(lengths) + 1)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def num_tokens(self) -> NDArray[np.int64]:
        """(samples,), tokens of each without what it is filled up with."""
        return np.add.reduceat(pair_lengths(self._tokens), self._bounds[:-1])

    def documents(self, number: int) -> range:
        """The documents of a sample: prompts and answers in turn."""
        return range(2 * int(self._bounds[number]), 2 * int(self._bounds[number + 1]))

    def __getitem__(self, number: int) -> Mapping[str, Tensor]:
        text = torch.full((self._length + 1,), self._eos_token_id)
        loss_mask, positions = torch.zeros(self._length), torch.arange(self._length)
        first = 0
        for document in self.documents(number)[::2]:
            prompt, answer = (torch.from_numpy(self._tokens[document + which].astype(np.int64)) for which in (0, 1))
            end = first + len(prompt) + len(answer)
            text[first:end] = torch.cat([prompt, answer])
            # Of what is predicted, from the answer's first token to the end of text.
            loss_mask[first + len(prompt) - 1 : end - 1] = 1.0
            if self._packed:
                positions[end:] = torch.arange(max(self._length - end, 0))
            first = end
        return {"tokens": text[:-1], "labels": text[1:], "loss_mask": loss_mask, "position_ids": positions}
