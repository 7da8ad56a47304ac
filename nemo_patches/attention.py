"""Causal attention by torch: flash kernels on a GPU where they fit, the same code on a CPU.

Megatron-core's own DotProductAttention, used where TransformerEngine is absent, materialises all scores and takes a
buffer on the GPU.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor, nn


class ScaledDotProductAttention(nn.Module):
    """The `core_attention` of a Megatron layer: softmax(q k^T / sqrt(d)) v under a causal mask, perhaps with a window.

    Raises:
        ValueError: at construction, for what it does not implement.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        super().__init__()
        if attention_type != "self" or attn_mask_type != AttnMaskType.causal:
            raise ValueError(f"attention {attention_type} with mask {attn_mask_type} is not covered; only causal self-attention is")
        if config.context_parallel_size != 1:
            raise ValueError(f"context_parallel_size {config.context_parallel_size} needs TransformerEngine; set it to 1")
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.softmax_scale = softmax_scale
        has_window = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.tokens_before = config.window_size[0] if has_window and config.window_size else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: (sequence, batch, heads, head_dim)
            key, value: (sequence, batch, query groups, head_dim)
            attention_mask: (batch, 1, 1, sequence), True at padding, which no other token sees; None where there is none.
                The mask is causal in any case.

        Returns:
            (sequence, batch, heads * head_dim)
        """
        if attention_bias is not None or packed_seq_params is not None:
            raise ValueError("attention bias and packed sequences need TransformerEngine")
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        visible = self._visible(query.shape[2], attention_mask, query.device)
        # Ranks hold different heads, so their dropout must come from the tensor-parallel random state.
        with get_cuda_rng_tracker().fork() if self.training and self.dropout else contextlib.nullcontext():
            context = self.attend(query, key, value, visible, dropout=self.dropout if self.training else 0.0)
        return context.permute(2, 0, 1, 3).flatten(2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, dropout: float) -> Tensor:
        """The weighted values, (batch, heads, sequence, head_dim).

        Args:
            visible: whether a query (second last dimension) sees a key (last); None for all keys up to the query's own.
        """
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=visible,
            dropout_p=dropout,
            is_causal=visible is None,
            scale=self.softmax_scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )

    def _visible(self, length: int, padding: Tensor | None, device: torch.device) -> Tensor | None:
        """The mask where it is more than causal, which the flash kernels take as a flag."""
        windowed = self.tokens_before is not None and length > self.tokens_before + 1
        if not windowed and padding is None:
            return None
        visible = causal_mask(length, self.tokens_before if windowed else None, device)
        if padding is None:
            return visible
        # Padding sees itself, as a row without any key would have no softmax.
        return visible & (~padding | torch.eye(length, dtype=torch.bool, device=device))


def causal_mask(length: int, tokens_before: int | None, device: torch.device) -> Tensor:
    """Which keys (columns) each query (row) sees: its own and those before, at most `tokens_before` of them."""
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return mask if tokens_before is None else mask.triu(-tokens_before)


class CappedAttention(ScaledDotProductAttention):
    """Attention whose scores approach a largest value as by tanh (Gemma 2, section 2.2): cap * tanh(score / cap).

    No kernel of torch caps scores, so they are materialised: (batch, heads, sequence, sequence).
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.cap = float(config.attn_logit_softcapping)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, dropout: float) -> Tensor:
        """See `ScaledDotProductAttention`."""
        if visible is None:
            visible = causal_mask(query.shape[2], None, query.device)
        groups = key.shape[1]
        grouped = query.unflatten(1, (groups, -1))  # (batch, groups, heads of a group, sequence, head_dim)
        scale = query.shape[-1] ** -0.5 if self.softmax_scale is None else self.softmax_scale
        scores = torch.tanh(grouped @ key.unsqueeze(2).transpose(-1, -2) * (scale / self.cap)) * self.cap
        if visible.dim() == 4:  # (batch, 1, sequence, sequence)
            visible = visible.unsqueeze(2)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1, dtype=torch.float32).type_as(value)
        return (F.dropout(weights, dropout) @ value.unsqueeze(2)).flatten(1, 2)
