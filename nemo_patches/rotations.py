"""Rotary positions that Megatron has not: YaRN, LongRoPE, two kinds in one model, and a temperature by position.

Of these, layers with a window rotate by one base, those without by another (Gemma 3) or by YaRN (OLMo 3).

Megatron hands every layer the same angles.  Here they are those of both kinds in one tensor, so that whatever becomes of them on the way,
documents that count anew or a rank's part of a sequence, becomes of both; each layer takes its own.  For Ministral 3's
attention temperature the position itself is such an angle, of a rotation by 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor, nn


def rotate_by_two_bases(model: MegatronGPTModel, *, local: float, scaling: float) -> None:
    """Give a model that rotates by one base the angles of another besides.

    Args:
        local: base in layers with a window.
        scaling: what positions are divided by in the others.
    """
    rotary = model.rotary_pos_emb
    own = rotary.inv_freq
    exponents = torch.arange(0, 2 * len(own), 2, dtype=torch.float32, device=own.device) / (2 * len(own))
    # Megatron puts all angles behind themselves again, as both halves of a head are rotated.
    rotary.inv_freq = torch.cat([own / scaling, 1.0 / local**exponents])


class SelfAttentionOfTwoBases(SelfAttention):  # type: ignore[misc]
    """Attention that takes the angles of its kind of layer, and YaRN's factor of the scores where that has no window."""

    def __init__(self, config: Any, submodules: Any, layer_number: int, *args: Any, **kwargs: Any) -> None:
        self._has_window = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        if not self._has_window and config.yarn_attention_factor != 1.0:
            config = copy.copy(config)
            config.softmax_scale *= config.yarn_attention_factor**2
        super().__init__(config, submodules, layer_number, *args, **kwargs)

    def forward(self, *args: Any, rotary_pos_emb: Tensor, **kwargs: Any) -> Any:
        """As Megatron's.

        Args:
            rotary_pos_emb: (length, ..., 2 * rotated_dimensions)
        """
        return super().forward(*args, rotary_pos_emb=angles_of(rotary_pos_emb, has_window=self._has_window), **kwargs)


def angles_of(angles: Tensor, *, has_window: bool) -> Tensor:
    """Those of one kind of layer.

    Args:
        angles: (..., 4 * n): n of layers without a window, n of those with one, and both again.

    Returns:
        (..., 2 * n)
    """
    return angles.unflatten(-1, (2, 2, -1))[..., int(has_window), :].flatten(-2)


def append_position(rotary: nn.Module) -> None:
    """Give a model's rotations one more, whose angle is the position."""
    frequencies: Tensor = rotary.inv_freq  # type: ignore[assignment]
    rotary.inv_freq = torch.cat([frequencies, frequencies.new_ones(1)])


class SelfAttentionWithTemperature(SelfAttention):  # type: ignore[misc]
    """Attention whose queries are multiplied by 1 + beta * log(1 + floor(position / positions)) (Ministral 3)."""

    def forward(self, *args: Any, rotary_pos_emb: Tensor, **kwargs: Any) -> Any:
        """As Megatron's.

        Args:
            rotary_pos_emb: (length, ..., rotated_dimensions + 2): angles and position, and both again.
        """
        angles = rotary_pos_emb.unflatten(-1, (2, -1))
        periods = torch.floor(angles[..., 0, -1] / self.config.query_temperature_positions)
        self._temperature = 1 + self.config.query_temperature_beta * torch.log1p(periods)
        return super().forward(*args, rotary_pos_emb=angles[..., :-1].flatten(-2), **kwargs)

    def get_query_key_value_tensors(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """(length, samples, heads, head_dim) queries, not rotated yet, which changes nothing; keys and values as Megatron's."""
        query, key, value = super().get_query_key_value_tensors(*args, **kwargs)
        temperature = self._temperature.reshape(len(query), -1, 1, 1)  # of one sample for all, or of each
        return query * temperature.type_as(query), key, value


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
