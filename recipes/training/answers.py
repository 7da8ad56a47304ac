"""Questions with their answers as samples of which the answers alone are trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from data_prep.megatron.index import TokenFile, pair_lengths
from recipes.numbers.blend import pack


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
