"""Attention to the tokens on both sides, by torch: what masked models have in the place of a causal mask."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as F  # noqa: N812
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from nemo_patches.attention import ScaledDotProductAttention
from nemo_patches.documents import DocumentBlock, Documents


class BidirectionalAttention(ScaledDotProductAttention):
    """The `core_attention` of a layer whose tokens all see each other: softmax(q k^T / sqrt(d)) v.

    Padding is a mask of keys alone, which no kernel needs for each pair of tokens; documents that do not see each other are computed apart.
    """

    mask_types = (AttnMaskType.no_mask, AttnMaskType.padding)

    def __init__(self, config: TransformerConfig, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        if self.is_over_ranks:
            raise ValueError(f"context_parallel_size {config.context_parallel_size} is for causal attention alone; set it to 1")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, dropout: float) -> Tensor:
        """See `ScaledDotProductAttention.attend`; without `visible` every query sees every key."""
        kernel = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=self.softmax_scale)
        return kernel(query, key, value, attn_mask=visible)

    def _visible(self, length: int, padding: Tensor) -> Tensor:
        """Which keys all queries see, (batch, 1, 1, sequence); where all of a sample is padding its result has no meaning, but is finite."""
        return ~padding | padding.all(dim=-1, keepdim=True)

    def _seen_in(self, documents: Documents, block: DocumentBlock) -> Tensor:
        return documents.same_document(block)
