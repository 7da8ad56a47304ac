"""Samples of which the documents do not see each other: where the positions begin again, and which losses do not count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from data_prep.megatron.index import TokenFile
from recipes.numbers.blend import num_pieces


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
