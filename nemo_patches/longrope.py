"""LongRoPE's rotary positions (Ding et al. 2024), as Phi-3 has them: each rotation is slowed down by a factor of its own, long samples by another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def slow_by_length(rotary: nn.Module, *, short: Sequence[float], long: Sequence[float], positions: int) -> None:
    """Have a model's rotations be slowed down by `long` where a sample has more than `positions` tokens, else by `short`, as transformers does.

    Args:
        rotary: Megatron's, called with the length of the whole sample; it has (n,) rotations, the fastest first.
        short, long: n factors each.
    """
    plain: Tensor = rotary.inv_freq  # type: ignore[assignment]
    slowed = [plain / torch.tensor(factors, dtype=torch.float32, device=plain.device) for factors in (short, long)]

    def choose(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        module.inv_freq = slowed[inputs[0] > positions]

    rotary.register_forward_pre_hook(choose)
