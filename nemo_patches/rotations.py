"""Two kinds of rotary positions in one model: layers with a window rotate by one base, those without by another (Gemma 3) or by YaRN (OLMo 3).

Megatron hands every layer the same angles.  Here they are those of both kinds in one tensor, so that whatever becomes of them on the way,
documents that count anew or a rank's part of a sequence, becomes of both; each layer takes its own.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor


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
