"""YaRN's rotary positions (Peng et al. 2023), for models that are to read further than they were first trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def yarn_frequencies(
    frequencies: Tensor, *, base: float, factor: float, positions: int, turns: tuple[float, float], truncate: bool
) -> Tensor:
    """Rotations that turn often within the positions of the first training as they are, those that turn seldom slowed down, the others between.

    Source: Peng et al. 2023 (YaRN), section 3.2, with the bounds in whole dimensions as its code has them.

    Args:
        frequencies: (n,) radians per position, the fastest first.
        base: of the rotations.
        factor: by which the slow ones are slowed down.
        positions: of the first training.
        turns: within these positions, from which on a rotation stays as it is, and below which it is slowed down whole.
        truncate: whether the bounds are whole dimensions.

    Returns:
        (n,)
    """
    dimensions = 2 * len(frequencies)
    fast, slow = (dimensions * math.log(positions / (number * 2 * math.pi)) / (2 * math.log(base)) for number in turns)
    if truncate:
        fast, slow = math.floor(fast), math.ceil(slow)
    first, last = max(fast, 0), min(slow, dimensions - 1)
    steps = torch.arange(len(frequencies), dtype=torch.float32, device=frequencies.device)
    slowed = ((steps - first) / (last - first or 0.001)).clamp(0, 1)
    return frequencies / factor * slowed + frequencies * (1 - slowed)
