"""Runs of masked training that also tell which samples they saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from recipes.training.masking import MaskedSamples
from tests.recipes import training_ranks


def train(output: str, **options: Any) -> dict[str, Any]:
    """As `training_ranks.train`; each rank writes `NAME.RANK.pt`, number -> sample, beside the run."""
    seen: dict[int, Any] = {}
    original = MaskedSamples.__getitem__

    def note(samples: MaskedSamples, number: int) -> Any:
        found = original(samples, number)
        seen[number] = {key: value for key, value in found.items() if isinstance(value, torch.Tensor)}
        return found

    MaskedSamples.__getitem__ = note  # type: ignore[method-assign]  # this process is a fork, and ends with the run
    found = training_ranks.train(output, **options)
    torch.save(seen, Path(f"{output}.{torch.distributed.get_rank()}.pt"))
    return found
