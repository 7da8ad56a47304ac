"""Causal attention by torch's scaled_dot_product_attention: flash kernels on a GPU, the same code on a CPU.

Megatron-core's own DotProductAttention, used where TransformerEngine is absent, materialises all scores and takes a
buffer on the GPU.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch.nn.functional as F  # noqa: N812
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn


class ScaledDotProductAttention(nn.Module):
    """The `core_attention` of a Megatron layer: softmax(q k^T / sqrt(d)) v under a causal mask.

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
        """Attend; the mask argument is ignored because the mask is causal by construction.

        Args:
            query: (sequence, batch, heads, head_dim)
            key, value: (sequence, batch, query groups, head_dim)

        Returns:
            (sequence, batch, heads * head_dim)
        """
        if attention_bias is not None or packed_seq_params is not None:
            raise ValueError("attention bias and packed sequences need TransformerEngine")
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        dropout = self.dropout if self.training else 0.0
        # Ranks hold different heads, so their dropout must come from the tensor-parallel random state.
        with get_cuda_rng_tracker().fork() if dropout else contextlib.nullcontext():
            context = F.scaled_dot_product_attention(
                query,
                key,
                value,
                dropout_p=dropout,
                is_causal=True,
                scale=self.softmax_scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        return context.permute(2, 0, 1, 3).flatten(2)
