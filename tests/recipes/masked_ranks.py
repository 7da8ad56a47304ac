"""Runs of masked training that also tell which samples they saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nemo_patches.masked_positions import _MaskedPositions
from recipes.training.masking import MaskedSamples
from tests.recipes import training_ranks


def train(output: str, **options: Any) -> dict[str, Any]:
    """As `training_ranks.train`, with the share of each pass's tokens that the head computed (`head_shares`).

    Each rank writes `NAME.RANK.pt`, number -> sample, beside the run.
    """
    seen: dict[int, Any] = {}
    original = MaskedSamples.__getitem__

    def note(samples: MaskedSamples, number: int) -> Any:
        found = original(samples, number)
        seen[number] = {key: value for key, value in found.items() if isinstance(value, torch.Tensor)}
        return found

    shares: list[float] = []
    select = _MaskedPositions._select

    def note_share(positions: Any, head: Any, inputs: Any) -> Any:
        hidden, *others = select(positions, head, inputs)
        ranks = torch.distributed.get_world_size(head.tp_group) if positions._gathers else 1
        shares.append(hidden.shape[0] / (inputs[0].shape[0] * ranks * inputs[0].shape[1]))
        return (hidden, *others)

    _MaskedPositions._select = note_share  # type: ignore[method-assign]
    MaskedSamples.__getitem__ = note  # type: ignore[method-assign]  # this process is a fork, and ends with the run
    found = training_ranks.train(output, **options)
    found["head_shares"] = shares
    torch.save(seen, Path(f"{output}.{torch.distributed.get_rank()}.pt"))
    return found
