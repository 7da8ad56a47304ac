"""The data sets of a run: question-answer pairs, intra-document masking, and Megatron's in epochs.

Each sample of a pass comes as often as the recipe says, in the order of `recipes.numbers.blend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset
from nemo.collections.llm.gpt.data.pre_training import PreTrainingDataModule
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from data_prep.megatron.index import TokenFile, pair_lengths
from recipes.numbers.blend import Blend, Order, num_pieces, pack, sample_order


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
        assert found == self._blend.sizes, f"Megatron makes {found} samples; expected {self._blend.sizes}"
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
    """Each pair a sample, or several with intra-document masking, padded with end-of-text tokens.

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


class DocumentSamples(GPTDataset):  # type: ignore[misc]
    """Megatron's samples with positions that begin again; it can do that itself, once through the rest of the sample for each document."""

    def __getitem__(self, number: int | None) -> dict[str, Tensor]:
        found: dict[str, Any] = super().__getitem__(number)
        [positions] = positions_in_documents(found["tokens"][None], self.config.tokenizer.eod)
        return {**found, "position_ids": positions}


class PaddedDocuments(Dataset[Mapping[str, Tensor]]):
    """Each document a sample, or several where it is longer than one, filled up with padding, which is a document of its own.

    Args:
        prefix: path of what `data_prep.to_megatron` wrote, without suffix.

    Attributes:
        prefix: as given.
        num_tokens: (samples,), tokens of each without what it is filled up with.
    """

    def __init__(self, prefix: str, *, sequence_length: int, padding_id: int) -> None:
        self.prefix, self._tokens = prefix, TokenFile(Path(prefix))
        self._length, self._padding_id = sequence_length, padding_id
        lengths = self._tokens.document_lengths
        pieces = num_pieces(lengths, sequence_length)
        self._ends = np.cumsum(pieces)
        self.num_tokens: NDArray[np.int64] = np.full(len(self), sequence_length)
        self.num_tokens[self._ends[pieces > 0] - 1] = ((lengths - 1) % sequence_length + 1)[pieces > 0]

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def place(self, number: int) -> tuple[int, int]:
        """The document of a sample, and its first token there."""
        document = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[document - 1]) if document else 0
        return document, (number - before) * self._length

    def __getitem__(self, number: int) -> Mapping[str, Tensor]:
        document, first = self.place(number)
        text = torch.from_numpy(self._tokens[document][first : first + self._length].astype(np.int64))
        tokens, positions = torch.full((self._length,), self._padding_id), torch.arange(self._length)
        tokens[: len(text)] = text
        positions[len(text) :] = torch.arange(self._length - len(text))
        loss_mask = (torch.arange(self._length) < len(text)).float()
        return {"tokens": tokens, "labels": tokens.clone(), "loss_mask": loss_mask, "position_ids": positions}


def positions_in_documents(tokens: Tensor, end_of_text: int) -> Tensor:
    """Positions that begin again at 0 behind each end of text.

    Args:
        tokens: (samples, length); so is the result.
    """
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    starts = torch.zeros_like(tokens)
    starts[:, 1:] = (tokens[:, :-1] == end_of_text) * places[:, 1:]
    return places - starts.cummax(dim=1).values
