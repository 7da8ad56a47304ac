"""Causal attention by torch: flash kernels on a GPU where they fit, the same code on a CPU.

Megatron-core's own DotProductAttention, used where TransformerEngine is absent, materialises all scores and takes a
buffer on the GPU.  Here no tensor has a number for each query, key and head: what no kernel of torch knows, windows and capped
scores, is computed for a block of queries at a time, over the keys that these see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WINDOW_BLOCK = 1024  # queries; a window of 4,096 then costs a quarter more than it has to
CAP_BLOCK = 256  # queries; 16 heads over 8,192 keys are then 134 MB of scores in 32 bit, a few times over
_ALIGNMENT = 16  # of the keys of a block: the kernel copies a mask whose rows end elsewhere


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
        visible = None if attention_mask is None else self._visible(query.shape[2], attention_mask)
        # Ranks hold different heads, so their dropout must come from the tensor-parallel random state.
        with get_cuda_rng_tracker().fork() if self.training and self.dropout else contextlib.nullcontext():
            context = self.attend(query, key, value, visible, dropout=self.dropout if self.training else 0.0)
        return context.permute(2, 0, 1, 3).flatten(2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, dropout: float) -> Tensor:
        """The weighted values, (batch, heads, sequence, head_dim).

        Args:
            visible: whether a query (second last dimension) sees a key (last); None for all keys up to the query's own, or those of
                the window.
        """
        kernel = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=self.softmax_scale)
        has_groups = query.shape[1] != key.shape[1]
        if visible is None and not self._has_window(query.shape[2]):
            return kernel(query, key, value, is_causal=True, enable_gqa=has_groups)
        if has_groups:  # of a GPU's kernels, those that take a mask know no groups, and all scores would be kept in 32 bit
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        if visible is not None:
            return kernel(query, key, value, attn_mask=visible)
        assert self.tokens_before is not None
        outputs = []
        for block in blocks(query.shape[2], size=WINDOW_BLOCK, tokens_before=self.tokens_before):
            bias = window_bias(block.shape, self.tokens_before, query.dtype, query.device)
            outputs.append(kernel(query[:, :, block.queries], key[:, :, block.keys], value[:, :, block.keys], attn_mask=bias))
        return torch.cat(outputs, dim=2)

    def _has_window(self, length: int) -> bool:
        return self.tokens_before is not None and length > self.tokens_before + 1

    def _visible(self, length: int, padding: Tensor) -> Tensor:
        """The mask of padded sequences: (batch, 1, sequence, sequence)."""
        whole = BlockShape(length, length, 0)
        visible = visible_keys(whole, self.tokens_before if self._has_window(length) else None, padding.device)
        # Padding sees itself, as a row without any key would have no softmax.
        return visible & (~padding | torch.eye(length, dtype=torch.bool, device=padding.device))


class BlockShape(NamedTuple):
    """Sizes of a block of scores, and which of its keys is that of its first query."""

    num_queries: int
    num_keys: int
    own_key: int


class Block(NamedTuple):
    """Some queries that follow each other, and the keys that any of them sees."""

    queries: slice
    keys: slice

    @property
    def shape(self) -> BlockShape:
        """See `BlockShape`."""
        return BlockShape(self.queries.stop - self.queries.start, self.keys.stop - self.keys.start, self.queries.start - self.keys.start)


def blocks(length: int, *, size: int, tokens_before: int | None) -> Iterator[Block]:
    """A sequence in blocks of `size` queries."""
    for first in range(0, length, size):
        last = min(first + size, length)
        first_key = 0 if tokens_before is None else max(first - tokens_before, 0) // _ALIGNMENT * _ALIGNMENT
        yield Block(slice(first, last), slice(first_key, last))


def visible_keys(shape: BlockShape, tokens_before: int | None, device: torch.device) -> Tensor:
    """Which keys (columns) each query (row) sees: its own and those before, at most `tokens_before` of them."""
    mask = torch.ones(shape.num_queries, shape.num_keys, dtype=torch.bool, device=device).tril(shape.own_key)
    return mask if tokens_before is None else mask.triu(shape.own_key - tokens_before)


@lru_cache(maxsize=8)  # blocks in the middle are alike, in every layer, and what is kept for the backward pass is this one tensor
def window_bias(shape: BlockShape, tokens_before: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to the scores of a block: 0 for a key that is seen, -inf for others."""
    hidden = ~visible_keys(shape, tokens_before, device)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)


class CappedAttention(ScaledDotProductAttention):
    """Attention whose scores approach a largest value as by tanh (Gemma 2, section 2.2): cap * tanh(score / cap).

    No kernel of torch caps scores, so those of a block of queries are materialised, and computed again for the backward pass.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.cap = float(config.attn_logit_softcapping)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, dropout: float) -> Tensor:
        """See `ScaledDotProductAttention`."""
        if visible is not None:
            return self._weigh(query, key, value, visible, dropout)
        length = query.shape[2]
        tokens_before = self.tokens_before if self._has_window(length) else None
        outputs = []
        for block in blocks(length, size=CAP_BLOCK, tokens_before=tokens_before):
            weigh = partial(self._weigh_block, shape=block.shape, tokens_before=tokens_before, dropout=dropout)
            parts = query[:, :, block.queries], key[:, :, block.keys], value[:, :, block.keys]
            outputs.append(checkpoint(weigh, *parts, use_reentrant=False, preserve_rng_state=dropout > 0))
        return torch.cat(outputs, dim=2)

    def _weigh_block(
        self, query: Tensor, key: Tensor, value: Tensor, *, shape: BlockShape, tokens_before: int | None, dropout: float
    ) -> Tensor:
        return self._weigh(query, key, value, visible_keys(shape, tokens_before, query.device), dropout)

    def _weigh(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, dropout: float) -> Tensor:
        grouped = query.unflatten(1, (key.shape[1], -1))  # (batch, groups, heads of a group, queries, head_dim)
        scale = query.shape[-1] ** -0.5 if self.softmax_scale is None else self.softmax_scale
        scores = torch.tanh(grouped @ key.unsqueeze(2).transpose(-1, -2) * (scale / self.cap)) * self.cap
        if visible.dim() == 4:  # (batch, 1, queries, keys)
            visible = visible.unsqueeze(2)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1, dtype=torch.float32).type_as(value)
        return (F.dropout(weights, dropout) @ value.unsqueeze(2)).flatten(1, 2)
