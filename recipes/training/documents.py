"""Samples of which the documents do not see each other: where the positions begin again, and which losses do not count."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.datasets.gpt_dataset import GPTDataset
from torch import Tensor


class DocumentSamples(GPTDataset):  # type: ignore[misc]
    """Megatron's samples with positions that begin again; it can do that itself, once through the rest of the sample for each document."""

    def __getitem__(self, number: int | None) -> dict[str, Tensor]:
        found: dict[str, Any] = super().__getitem__(number)
        [positions] = positions_in_documents(found["tokens"][None], self.config.tokenizer.eod)
        return {**found, "position_ids": positions}


def positions_in_documents(tokens: Tensor, end_of_text: int) -> Tensor:
    """Positions that begin again at 0 behind each end of text.

    Args:
        tokens: (samples, length)
    """
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    starts = torch.zeros_like(tokens)
    starts[:, 1:] = (tokens[:, :-1] == end_of_text) * places[:, 1:]
    return places - starts.cummax(dim=1).values
