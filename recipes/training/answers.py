"""Questions with their answers as samples of which the answers alone are trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from data_prep.megatron.index import TokenFile


class Answers(Dataset[Mapping[str, Tensor]]):
    """Each pair a sample, filled up with end-of-text tokens.

    Args:
        prefix: path of what `data_prep.question_answers` wrote, without suffix.

    Attributes:
        prefix: as given.
    """

    def __init__(self, prefix: str, *, sequence_length: int, eos_token_id: int) -> None:
        self.prefix, self._tokens = prefix, TokenFile(Path(prefix))
        self._length, self._eos_token_id = sequence_length, eos_token_id

    def __len__(self) -> int:
        return len(self._tokens) // 2

    @property
    def num_tokens(self) -> NDArray[np.int64]:
        """(pairs,), tokens of each without what it is filled up with."""
        return self._tokens.lengths.astype(np.int64).reshape(-1, 2).sum(axis=1)

    def __getitem__(self, number: int) -> Mapping[str, Tensor]:
        prompt, answer = (torch.from_numpy(self._tokens[2 * number + which].astype(np.int64)) for which in (0, 1))
        text = torch.full((self._length + 1,), self._eos_token_id)
        end = len(prompt) + len(answer)
        text[:end] = torch.cat([prompt, answer])
        loss_mask = torch.zeros(self._length)
        loss_mask[len(prompt) - 1 : end - 1] = 1.0  # of what is predicted, from the answer's first token to the end of text
        return {"tokens": text[:-1], "labels": text[1:], "loss_mask": loss_mask, "position_ids": torch.arange(self._length)}
