"""Causal attention by torch: flash kernels on a GPU where they fit, the same code on a CPU.

Megatron-core's own DotProductAttention, used where TransformerEngine is absent, materialises all scores and takes a
buffer on the GPU.  Here no tensor has a number for each query, key and head: what no kernel of torch knows, windows and capped
scores, is computed for a block of queries at a time, over the keys that these see.  With intra-document masking, documents are computed separately, the short
ones in blocks of several.  With context parallelism too, both come down to the first and the last key that a query sees.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state
from megatron.core.extensions.transformer_engine import TEDotProductAttention
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import get_cuda_rng_tracker, set_tensor_model_parallel_attributes
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention, make_sharded_tensors_for_checkpoint
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nemo_patches.context_parallel import Part, Span, attend_over_pieces, spans
from nemo_patches.documents import DocumentBlock, Documents

WINDOW_BLOCK = 1024  # queries; a window of 4,096 then costs a quarter more than it has to
CAP_BLOCK = 256  # queries; 16 heads over 8,192 keys are then 134 MB of scores in 32 bit, a few times over
SINK_DIMENSIONS = 8  # of which one is needed: a GPU's kernels want multiples
_ALIGNMENT = 16  # of the keys of a block: the kernel copies a mask whose rows end elsewhere


class ScaledDotProductAttention(nn.Module):
    """The `core_attention` of a Megatron layer: softmax(q k^T / sqrt(d)) v under a causal mask, perhaps with a window.

    Raises:
        ValueError: at construction, for what it does not implement.
    """

    mask_types: tuple[AttnMaskType, ...] = (AttnMaskType.causal,)

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
        if attention_type != "self" or attn_mask_type not in self.mask_types:
            names = " or ".join(kind.name for kind in self.mask_types)
            raise ValueError(f"attention {attention_type} with mask {attn_mask_type} is not covered; only {names} self-attention is")
        self.is_over_ranks = config.context_parallel_size > 1
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.draws_own = not config.sequence_parallel
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
            key, value: (sequence, batch, query_groups, head_dim)
            attention_mask: (batch, 1, 1, sequence), True at padding, which no other token sees; None where there is none.
                The mask is causal in any case.
            packed_seq_params: bounds of documents, for intra-document masking; with one sample, the dimension of the batch is then left out of queries,
                keys and values.

        With context parallelism, the sequence is this rank's part of it, see `nemo_patches.context_parallel`.

        Returns:
            (sequence, batch, heads * head_dim)
        """
        if attention_bias is not None or not (packed_seq_params is None or isinstance(packed_seq_params, Documents)):
            raise ValueError("attention bias and packed sequences need TransformerEngine")
        if attention_mask is not None and packed_seq_params is not None:
            raise ValueError("intra-document masking was given together with a padding mask; expected one of them")
        if attention_mask is not None and self.is_over_ranks:
            raise ValueError("a padding mask was given, but context parallelism does not support one; expected none")
        if self.is_over_ranks:
            return self._attend_over_ranks(query, key, value, packed_seq_params)
        if packed_seq_params is not None:
            return self._attend_documents(query, key, value, packed_seq_params)
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        visible = None if attention_mask is None else self._visible(query.shape[2], attention_mask)
        with self._random_state():
            context = self.attend(query, key, value, visible, dropout=self.dropout if self.training else 0.0)
        return context.permute(2, 0, 1, 3).flatten(2)

    def _random_state(self) -> contextlib.AbstractContextManager[Any]:
        """Ranks hold different heads, so their dropout must come from the tensor-parallel random state.

        With sequence parallelism Megatron draws for all layers from it; taken again from within, it would give the same numbers again.
        """
        state: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.training and self.dropout and self.draws_own:
            state = get_cuda_rng_tracker().fork()
        return state

    def _attend_documents(self, query: Tensor, key: Tensor, value: Tensor, documents: Documents) -> Tensor:
        """As `forward`, each document for itself."""
        sizes = [block.size for block in documents.blocks]
        # Not cut by slices: the gradient of each would be as large as the whole.
        parts = [as_row(x, documents).permute(1, 0, 2)[None].split(sizes, dim=2) for x in (query, key, value)]
        outputs = []
        with self._random_state():
            for block, q, k, v in zip(documents.blocks, *parts, strict=True):
                visible = None if block.is_one_document else self._visible_in(documents, block, query.dtype)
                context = self.attend(q, k, v, visible, dropout=self.dropout if self.training else 0.0)
                outputs.append(context[0].transpose(0, 1))
        return from_row(torch.cat(outputs), documents)

    def _attend_over_ranks(self, query: Tensor, key: Tensor, value: Tensor, documents: Documents | None) -> Tensor:
        """As `forward`, of this rank's part of each sample."""
        query, key, value = (x.unsqueeze(1) if x.dim() == 3 else x for x in (query, key, value))
        with self._random_state():
            draws = self.training and self.dropout > 0
            parts = list(self._parts(query, documents))
            return attend_over_pieces(query, key, value, parts, group=parallel_state.get_context_parallel_group(), draws=draws)

    def _parts(self, query: Tensor, documents: Documents | None) -> Iterator[Part]:
        """Blocks of queries, of each sample for itself where it has documents of its own."""
        for samples in [slice(None)] if documents is None else [slice(n, n + 1) for n in range(query.shape[1])]:
            for piece in rank_spans(len(query)):
                for span in piece.blocks(self._block_size()):
                    first = 0 if documents is None else documents.start_of(samples.start, span.first)
                    if self.tokens_before is not None:
                        first = max(first, span.first - self.tokens_before)
                    keys = slice(first // _ALIGNMENT * _ALIGNMENT, span.end)
                    starts = None
                    if documents is not None:
                        places = torch.arange(span.first, span.end, device=query.device)
                        starts = places - documents.positions[samples.start, span.rows]
                    yield Part(span.rows, samples, keys, partial(self._attend_span, span=span, first_key=keys.start, starts=starts))

    def _block_size(self) -> int:
        return WINDOW_BLOCK

    def _attend_span(self, query: Tensor, key: Tensor, value: Tensor, *, span: Span, first_key: int, starts: Tensor | None) -> Tensor:
        """See `Part.attend`.

        Args:
            starts: (queries,), place in the sample where the document of each begins; None where a sample is seen whole.
        """
        visible = visible_keys(BlockShape(len(query), len(key), span.first - first_key), self.tokens_before, query.device)
        if starts is not None:
            visible = visible & (torch.arange(first_key, span.end, device=query.device) >= starts[:, None])
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        context = self._weigh(query, key, value, visible, self.dropout if self.training else 0.0)
        return context.permute(2, 0, 1, 3).flatten(2)

    def _visible_in(self, documents: Documents, block: DocumentBlock, dtype: torch.dtype) -> Tensor:
        """What is added to the scores of a block of several documents."""
        key = (block, self._window_of(block.size), dtype)
        if key not in documents.masks:
            hidden = ~self._seen_in(documents, block)
            width = -(-block.size // _ALIGNMENT) * _ALIGNMENT
            bias = torch.zeros(block.size, width, dtype=dtype, device=hidden.device)[:, : block.size]
            documents.masks[key] = bias.masked_fill_(hidden, -torch.inf)
        return documents.masks[key]

    def _seen_in(self, documents: Documents, block: DocumentBlock) -> Tensor:
        shape = BlockShape(block.size, block.size, 0)
        return visible_keys(shape, self._window_of(block.size), documents.positions.device) & documents.same_document(block)

    def _window_of(self, length: int) -> int | None:
        return self.tokens_before if self._has_window(length) else None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, dropout: float) -> Tensor:
        """The weighted values, (batch, heads, sequence, head_dim).

        Args:
            query: (batch, heads, sequence, head_dim)
            key, value: (batch, query_groups, sequence, head_dim)
            visible: (..., sequence, sequence), whether a query (second last dimension) sees a key (last), or what is added to its score;
                None for all keys up to the query's own, or those of the window.
        """
        kernel = partial(F.scaled_dot_product_attention, dropout_p=dropout, scale=self.softmax_scale)
        has_groups = query.shape[1] != key.shape[1]
        if visible is None and not self._has_window(query.shape[2]):
            return kernel(query, key, value, is_causal=True, enable_gqa=has_groups)
        if visible is not None:
            return self._weigh(query, key, value, visible, dropout)
        key, value = _for_every_head(query, key, value)
        assert self.tokens_before is not None
        outputs = []
        for block in blocks(query.shape[2], size=WINDOW_BLOCK, tokens_before=self.tokens_before):
            bias = window_bias(block.shape, self.tokens_before, query.dtype, query.device)
            outputs.append(self._weigh(query[:, :, block.queries], key[:, :, block.keys], value[:, :, block.keys], bias, dropout))
        return torch.cat(outputs, dim=2)

    def _weigh(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, dropout: float) -> Tensor:
        """See `attend`; which keys are visible is said."""
        key, value = _for_every_head(query, key, value)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout, scale=self.softmax_scale)

    def _has_window(self, length: int) -> bool:
        return self.tokens_before is not None and length > self.tokens_before + 1

    def _visible(self, length: int, padding: Tensor) -> Tensor:
        """The mask of padded sequences: (batch, 1, sequence, sequence)."""
        whole = BlockShape(length, length, 0)
        visible = visible_keys(whole, self._window_of(length), padding.device)
        # Padding sees itself, as a row without any key would have no softmax.
        return visible & (~padding | torch.eye(length, dtype=torch.bool, device=padding.device))


def _for_every_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a group once for each head: of a GPU's kernels, those that take a mask know no groups, and would keep all scores."""
    repeats = query.shape[1] // key.shape[1]
    if repeats == 1:
        return key, value
    return key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)


def rank_spans(length: int) -> tuple[Span, Span]:
    """What this rank has of a sample, of which it has so many tokens."""
    return spans(length, rank=parallel_state.get_context_parallel_rank(), size=parallel_state.get_context_parallel_world_size())


def as_row(x: Tensor, documents: Documents) -> Tensor:
    """(sequence, batch, ...), or (sequence, ...) of one sample -> (batch * sequence, ...), one sample behind the other."""
    return x if documents.positions.shape[0] == 1 and x.dim() == 3 else x.transpose(0, 1).flatten(0, 1)


def from_row(row: Tensor, documents: Documents) -> Tensor:
    """(batch * sequence, heads, head_dim), or with both in one dimension -> (sequence, batch, heads * head_dim)"""
    return row.flatten(1).unflatten(0, documents.positions.shape).transpose(0, 1).contiguous()


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
    """(num_queries, num_keys) bool, which keys each query sees: its own and those before, at most `tokens_before` of them."""
    mask = torch.ones(shape.num_queries, shape.num_keys, dtype=torch.bool, device=device).tril(shape.own_key)
    return mask if tokens_before is None else mask.triu(shape.own_key - tokens_before)


@lru_cache(maxsize=8)  # blocks in the middle are alike, in every layer, and what is kept for the backward pass is this one tensor
def window_bias(shape: BlockShape, tokens_before: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(num_queries, num_keys), what is added to the scores of a block: 0 for a key that is seen, -inf for others."""
    hidden = ~visible_keys(shape, tokens_before, device)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)


@lru_cache(maxsize=8)  # of a tensor that layers have in common, so that they keep one for the backward pass
def with_sink(visible: Tensor) -> Tensor:
    """(..., queries, keys) -> (..., queries, 1 + keys), whether a key is seen or what is added to its score: the first is seen by all."""
    width = 1 + visible.shape[-1]
    return F.pad(visible, (1, -width % _ALIGNMENT), value=visible.dtype == torch.bool)[..., :width]


class CappedAttention(ScaledDotProductAttention):
    """Attention whose scores approach a largest value as by tanh (Gemma 2, section 2.2): cap * tanh(score / cap).

    No kernel of torch caps scores, so those of a block of queries are materialised, and recomputed in the backward pass.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.cap = float(config.attn_logit_softcapping)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, dropout: float) -> Tensor:
        """See `ScaledDotProductAttention.attend`."""
        keeps_seed = dropout > 0
        if visible is not None:
            return checkpoint(self._weigh, query, key, value, visible, dropout, use_reentrant=False, preserve_rng_state=keeps_seed)
        length = query.shape[2]
        tokens_before = self._window_of(length)
        outputs = []
        for block in blocks(length, size=CAP_BLOCK, tokens_before=tokens_before):
            weigh = partial(self._weigh_block, shape=block.shape, tokens_before=tokens_before, dropout=dropout)
            parts = query[:, :, block.queries], key[:, :, block.keys], value[:, :, block.keys]
            outputs.append(checkpoint(weigh, *parts, use_reentrant=False, preserve_rng_state=keeps_seed))
        return torch.cat(outputs, dim=2)

    def _visible_in(self, documents: Documents, block: DocumentBlock, dtype: torch.dtype) -> Tensor:
        """Which keys each query of a block of several documents sees."""
        key = (block, self._window_of(block.size), torch.bool)
        if key not in documents.masks:
            documents.masks[key] = self._seen_in(documents, block)
        return documents.masks[key]

    def _block_size(self) -> int:
        return CAP_BLOCK

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


class SinkAttention(ScaledDotProductAttention):
    """Attention with a sink for each head (gpt-oss): a score of its own that takes its part of the softmax and has no value.

    No kernel of torch has them.  Here a sink is one key more, in front of the others, whose value is zero; its score comes from a dimension more,
    in which all queries are 1 and all other keys 0.  So no mask has a number for each head.

    Raises:
        ValueError: at construction, with context parallelism.
    """

    def __init__(self, config: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        if config.context_parallel_size > 1:  # the backward pass of which gives gradients to queries, keys and values alone
            raise ValueError(
                f"context_parallel_size is {config.context_parallel_size}, but sinks get no gradient with context parallelism; expected 1"
            )
        super().__init__(config, *args, **kwargs)
        num_heads = config.num_attention_heads // config.tensor_model_parallel_size
        self.softmax_offset = nn.Parameter(torch.zeros(num_heads, dtype=config.params_dtype))
        set_tensor_model_parallel_attributes(self.softmax_offset, True, 0, 1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, dropout: float) -> Tensor:
        """See `ScaledDotProductAttention.attend`."""
        if visible is not None or self._has_window(query.shape[2]):
            return super().attend(query, key, value, visible, dropout=dropout)
        # One query more too, so that the sink and a query's own key are what a causal kernel lets it see.
        return self._kernel(F.pad(query, (0, 0, 1, 0)), key, value, dropout, is_causal=True)[:, :, 1:]

    def _weigh(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, dropout: float) -> Tensor:
        """See `ScaledDotProductAttention.attend`; the sink is seen by all."""
        return self._kernel(query, key, value, dropout, attn_mask=with_sink(visible))

    def _kernel(self, query: Tensor, key: Tensor, value: Tensor, dropout: float, **mask: Any) -> Tensor:
        key, value = _for_every_head(query, key, value)
        head_dim = query.shape[-1]
        scale = head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale
        batch, num_heads, num_queries, _ = query.shape
        one = F.pad(query.new_ones(()).expand(batch, num_heads, num_queries, 1), (0, SINK_DIMENSIONS - 1))
        sink = F.pad((self.softmax_offset / scale)[:, None, None], (head_dim, SINK_DIMENSIONS - 1)).expand(batch, -1, -1, -1)
        context = F.scaled_dot_product_attention(
            torch.cat([query, one], dim=-1),
            torch.cat([sink.type_as(key), F.pad(key, (0, SINK_DIMENSIONS))], dim=2),
            F.pad(value, (0, SINK_DIMENSIONS, 1, 0)),
            dropout_p=dropout,
            scale=scale,
            **mask,
        )
        return context[..., :head_dim]

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: Any = None) -> dict[str, Any]:
        """What Megatron saves: the sinks, of all heads."""
        own = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(own, prefix, {"softmax_offset": 0}, sharded_offsets)  # type: ignore[no-any-return]


class TEDocumentAttention(TEDotProductAttention):  # type: ignore[misc]
    """TransformerEngine's attention with variable lengths.

    Given a mask of documents, its kernels silently ignore it; given lengths, they compute each document separately, or
    refuse.

    Its own context parallelism wants documents whose lengths twice the number of ranks divides, and deals out each of them.  Here samples are
    dealt out whatever documents they have, so keys are gathered, and the kernels get queries with fewer of them than of keys: what a rank has
    of a document, and all of the document up to there.
    """

    def __init__(self, config: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        self.is_over_ranks = config.context_parallel_size > 1
        if self.is_over_ranks:  # it is told of one rank
            config = copy.copy(config)
            config.context_parallel_size = 1
        super().__init__(config, *args, **kwargs)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """See `ScaledDotProductAttention.forward`."""
        if not isinstance(packed_seq_params, Documents):
            raise ValueError(
                "this attention masks between documents, but the bounds of documents were not given; expected packed_seq_params"
            )
        documents = packed_seq_params
        if self.is_over_ranks:
            query, key, value = (x.unsqueeze(1) if x.dim() == 3 else x for x in (query, key, value))
            draws = self.training and self.config.attention_dropout > 0
            parts = list(self._parts(query, documents))
            return attend_over_pieces(query, key, value, parts, group=parallel_state.get_context_parallel_group(), draws=draws)
        lengths = PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=documents.device_bounds,
            cu_seqlens_kv=documents.device_bounds,
            max_seqlen_q=documents.longest,
            max_seqlen_kv=documents.longest,
        )
        rows = (as_row(x, documents).contiguous() for x in (query, key, value))
        context = super().forward(*rows, None, attn_mask_type, attention_bias, lengths)
        return from_row(context, documents)

    def _parts(self, query: Tensor, documents: Documents) -> Iterator[Part]:
        """Each piece of each sample, with the keys from the beginning of its first document."""
        for sample in range(query.shape[1]):
            for span in rank_spans(len(query)):
                first = documents.start_of(sample, span.first)
                bounds = documents.bounds_within(sample, span.first, span.end)
                queries = [bound - span.first for bound in bounds]
                keys = [0, *(bound - first for bound in bounds[1:])]
                attend = partial(self._attend_lengths, queries=_lengths(queries, query.device), keys=_lengths(keys, query.device))
                yield Part(span.rows, slice(sample, sample + 1), slice(first, span.end), attend)

    def _attend_lengths(self, query: Tensor, key: Tensor, value: Tensor, *, queries: Lengths, keys: Lengths) -> Tensor:
        """See `Part.attend`; the last query of a document sees all of its keys."""
        context = super(TEDotProductAttention, self).forward(
            *(x.squeeze(1).contiguous() for x in (query, key, value)),
            None,
            attn_mask_type="padding_causal_bottom_right",
            qkv_format="thd",
            cu_seqlens_q=queries.bounds,
            cu_seqlens_kv=keys.bounds,
            max_seqlen_q=queries.longest,
            max_seqlen_kv=keys.longest,
        )
        return context.unsqueeze(1)  # type: ignore[no-any-return]


class Lengths(NamedTuple):
    """Documents in a row.

    Attributes:
        bounds: (documents + 1,) int32, first token of each, and one past the last.
    """

    bounds: Tensor
    longest: int


def _lengths(bounds: list[int], device: torch.device) -> Lengths:
    on_host = torch.tensor(bounds, dtype=torch.int32, pin_memory=True)
    return Lengths(on_host.to(device, non_blocking=True), max(end - first for first, end in pairwise(bounds)))
