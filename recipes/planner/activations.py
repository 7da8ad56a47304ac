"""What a transformer layer keeps from the forward for the backward pass, byte by byte.

Counted from the operations that NeMo runs for our models, and equal to what autograd's hooks see on a CPU to a few
bytes (tests/recipes/planner/test_planner_memory.py).  In the manner of Korthikanti et al. 2022, section 4.1, whose 34 bytes per
hidden unit hold for another layer: GELU, dropout and 16-bit masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_patches.whole_experts import has_biased_experts
from recipes.numbers.arithmetic import LayerShape, rotating_share, windowed_share
from recipes.numbers.recomputation import CORE_ATTENTION, FEED_FORWARD

KERNELS = ("cpu", "gpu", "te")
"""Who computes a layer: torch on a CPU, torch on a GPU, or TransformerEngine.

On a CPU torch takes RMSNorm and gated units apart and keeps every intermediate result; "gpu" and "te" are read in their
code and were not measured, as no GPU was available.
"""

# As `nemo_patches.attention` has them.
WINDOW_BLOCK = 1024  # queries whose keys torch's kernels visit together where there is a window
SINK_DIMENSIONS = 8  # that queries, keys and values have more where heads have a sink


@dataclass(frozen=True)
class LayerBytes:
    """Bytes kept on one tensor-parallel rank.

    Attributes:
        per_token: of each token of a micro batch.
        per_micro_batch: whatever its number of samples: masks, rotations, weights that count from 1.
    """

    per_token: float
    per_micro_batch: float

    def of(self, num_tokens: int) -> float:
        """Bytes of a micro batch of so many tokens."""
        return self.per_token * num_tokens + self.per_micro_batch


@dataclass(frozen=True)
class _Layer:
    """The numbers that every part of the count needs."""

    model: Mapping[str, Any]
    shape: LayerShape
    sequence_length: int
    item: int  # bytes of a number
    kernels: str
    tensor_parallel_size: int
    document_mask: bool = False
    recomputed: tuple[str, ...] = ()  # parts of the layer
    context_parallel_size: int = 1

    @property
    def gathers_keys(self) -> bool:
        """Whether keys are gathered for a layer, and again for its backward pass; TransformerEngine has an exchange of its own."""
        is_own = self.kernels != "te" or self.document_mask or bool(self.model.get("attn_logit_softcapping"))
        return self.context_parallel_size > 1 and is_own

    @property
    def heads(self) -> int:
        return self.model["num_attention_heads"]

    @property
    def head_dim(self) -> int:
        return self.shape.attention // self.heads

    @property
    def keys(self) -> int:
        return (self.shape.qkv - self.shape.attention) // 2

    @property
    def is_rms(self) -> bool:
        return self.model.get("normalization", "LayerNorm") == "RMSNorm"

    @property
    def is_centred(self) -> bool:
        return self.model.get("layernorm_zero_centered_gamma", False)

    @property
    def converts_queries(self) -> bool:
        """Whether the norms of queries and keys make 32-bit copies of them."""
        return self.item == 2 and not self.joins_heads and (self.kernels == "cpu" or (self.kernels == "gpu" and self.is_centred))

    @property
    def experts(self) -> int:
        """Of a layer; 0 where it has one feed-forward part."""
        return self.model.get("num_moe_experts") or 0

    @property
    def joins_heads(self) -> bool:
        """Whether one norm is over all queries, and one over all keys: ours, which keeps its input alone."""
        return bool(self.model.get("norms_of_all_heads", False))


def layer_activations(
    model: Mapping[str, Any],
    *,
    sequence_length: int,
    tensor_parallel_size: int = 1,
    context_parallel_size: int = 1,
    is_half: bool = True,
    hidden_dropout: bool = False,
    document_mask: bool = False,
    sequence_parallel: bool = False,
    recomputed: tuple[str, ...] = (),
    kernels: str = "gpu",
) -> LayerBytes:
    """What one layer keeps for the backward pass.

    For the layer of Korthikanti et al. 2022 with 16-bit masks these are equation 2, with sequence parallelism equation 4, both without the
    scores that flash attention does not keep.

    Args:
        model: the `config` of `context/model.json`.
        sequence_length: of whole samples, on all ranks among which they are cut.
        is_half: 16-bit numbers, otherwise 32-bit ones.
        document_mask: intra-document masking; the maximum is counted, which short documents reach.
        sequence_parallel: norms, dropout and the inputs of the column-parallel layers are split along the sequence over the ranks too.
        recomputed: parts of the layer with activation checkpointing; see `recipes.rules.schema.MODULES`.
        kernels: one of `KERNELS`.
    """
    item = 2 if is_half else 4
    layer = _Layer(
        model, LayerShape.of(model), sequence_length, item, kernels, tensor_parallel_size, document_mask, recomputed, context_parallel_size
    )
    num_norms = 2 * (model.get("pre_norms", True) + model.get("post_norms", False))
    num_norms -= int(model.get("post_norms", False) and FEED_FORWARD in recomputed)  # the one after the second linear layer
    # The norms and the inputs of the column-parallel layers are whole on every rank, all else is split.
    whole = num_norms * _norm_bytes(layer) + 2 * layer.item * layer.shape.hidden
    if hidden_dropout:  # what was dropped: a byte per number, which torch on a CPU keeps as a factor
        whole += 2 * layer.shape.hidden * (layer.item if kernels == "cpu" else 1)
    split = _attention_bytes(layer) + (0 if FEED_FORWARD in recomputed else _feed_forward_bytes(layer))
    if sequence_parallel:
        whole, split = 0, split + whole
    if layer.experts and FEED_FORWARD not in recomputed:
        split += _routed_bytes(layer)
        if has_biased_experts(model):  # each rank has all of them, and its own tokens
            split += _permuted_bytes(layer)
        else:
            whole += _permuted_bytes(layer)
    rotating = rotating_share(model) if model.get("position_embedding_type") == "rope" else 0.0
    rotations = round(4 * int(layer.head_dim * model.get("rotary_percent", 1.0)) * layer.item * rotating)
    once = rotations * sequence_length // context_parallel_size
    if document_mask:  # each sample has positions of its own
        whole, once = whole + rotations, 0
    if layer.is_centred and kernels != "te":
        once += 4 * layer.shape.hidden * num_norms
    return LayerBytes(whole + split / tensor_parallel_size, once)


def norm_bytes(model: Mapping[str, Any], *, item: int, kernels: str) -> int:
    """Per token: what one norm keeps; see `layer_activations` for the arguments."""
    return _norm_bytes(_Layer(model, LayerShape.of(model), 1, item, kernels, 1))


def _norm_bytes(layer: _Layer) -> int:
    """Per token: the norm's input in the precision in which it is kept, and its statistics; the output is its reader's to keep."""
    hidden = layer.shape.hidden
    if not layer.is_rms:
        return layer.item * (hidden + 2)
    return _rms_norm_bytes(layer, hidden) + 4


def _rms_norm_bytes(layer: _Layer, width: int) -> int:
    if layer.kernels == "cpu":
        return 8 * width  # the input and the quotient, in 32 bit
    if layer.is_centred and layer.kernels == "gpu":
        return 4 * width  # ours converts its input first
    return layer.item * width


def _attention_bytes(layer: _Layer) -> float:
    """Per token: queries, keys and values, what comes of them, and what their own norms keep; on average over layers with and without a window."""
    share = windowed_share(layer.model, layer.sequence_length)
    return share * _attention_bytes_of(layer, has_window=True) + (1 - share) * _attention_bytes_of(layer, has_window=False)


def _attention_bytes_of(layer: _Layer, *, has_window: bool) -> float:
    shape, item = layer.shape, layer.item
    result = item * shape.attention
    if layer.model.get("softmax_type") == "learnable" and CORE_ATTENTION not in layer.recomputed:
        return result + _sink_attention_bytes(layer, has_window=has_window)
    is_kept = not (layer.model.get("attn_logit_softcapping") or CORE_ATTENTION in layer.recomputed or layer.gathers_keys)
    statistics = 4 * layer.heads if is_kept else 0  # the sum of each softmax, in 32 bit; otherwise all is recomputed
    is_masked = (layer.document_mask or has_window) and is_kept and layer.kernels != "te"
    norms = _query_key_norm_bytes(layer) if layer.model.get("qk_layernorm", False) or layer.joins_heads else 0.0
    if is_masked and layer.keys < shape.attention:
        # The kernel that takes a mask wants a key and a value for every head, and keeps the result of its block of queries.
        views = item * shape.qkv if norms and not layer.converts_queries else 0  # into the one tensor of all three
        return 3 * item * shape.attention + 2 * result + statistics + norms + views
    kept = float(item * shape.qkv)  # one tensor, of which the values are a part
    if layer.model.get("position_embedding_type") == "rope":
        rotating = rotating_share(layer.model)
        kept += item * (rotating * (shape.attention + layer.keys) + (1 - rotating) * _copied_queries(layer))
    kept += norms
    if is_masked:  # the results of all documents or blocks, and what they are put together to
        result *= 2
    return kept + result + statistics


def _sink_attention_bytes(layer: _Layer, *, has_window: bool) -> float:
    """Per token: queries, copied keys and values of every head, and the result, all with more dimensions and the sink as a key (`SinkAttention`)."""
    wide, length = layer.shape.attention + SINK_DIMENSIONS * layer.heads, layer.sequence_length
    window = layer.model.get("window_size")
    if layer.document_mask:
        return 4 * layer.item * wide + 4 * layer.heads
    if not has_window or window is None:  # with the sink as a query, too
        return (4 * layer.item * wide + 4 * layer.heads) * (1 + 1 / length)
    num_blocks = math.ceil(length / WINDOW_BLOCK)
    more_keys = (num_blocks + (num_blocks - 1) * window[0]) / length
    return layer.item * (4 + 2 * more_keys) * wide + 4 * layer.heads


def _num_groups(layer: _Layer) -> int:
    return layer.heads * layer.keys // layer.shape.attention


def _copied_queries(layer: _Layer) -> int:
    """Numbers per token: queries of several groups are copied to come together, where a group has several."""
    return layer.shape.attention if layer.tensor_parallel_size < _num_groups(layer) < layer.heads else 0


def _query_key_norm_bytes(layer: _Layer) -> float:
    """Per token: queries that are copied; the rest is a view of what is kept anyway."""
    copied = _copied_queries(layer)
    if layer.joins_heads:  # every rank has the same two numbers of a token
        return layer.item * copied + 8 * layer.tensor_parallel_size
    statistics = 4 * (layer.heads + _num_groups(layer))
    if layer.kernels != "cpu":
        return (4 * (layer.shape.attention + layer.keys) if layer.converts_queries else layer.item * copied) + statistics
    if layer.item == 2:  # converted to 32 bit, which is a copy of all
        copied = layer.shape.attention + layer.keys
    return 4 * (layer.shape.attention + layer.keys) + 4 * copied + statistics


def _feed_forward_bytes(layer: _Layer) -> int:
    """Per token: what goes into the second linear layer, and what the activation needs besides."""
    ffn, item = layer.shape.ffn, layer.item
    activation = layer.model.get("activation_func", "relu")
    if not layer.shape.is_gated:
        return item * ffn * (1 if activation == "relu" else 2)  # ReLU's output says where its input was above 0
    is_fused = layer.kernels != "cpu" and activation == "silu"
    # Gate and up, the product; the activated gate, and up plus an offset; the product times the share of an expert; the gate that was clamped.
    is_clamped = layer.model.get("activation_func_clamp_value") is not None
    return item * ffn * (3 if is_fused else 6 + is_clamped if layer.experts else 5)


def _routed_bytes(layer: _Layer) -> int:
    """Per token of a rank: which experts it goes to, and their shares, in 32 bit: of all experts, or of the chosen ones."""
    chosen = layer.model["moe_router_topk"]
    return 8 * chosen + 4 * (layer.experts if layer.model.get("moe_router_pre_softmax", False) else chosen)


def _permuted_bytes(layer: _Layer) -> int:
    """Per token, of those that tensor-parallel ranks gather to put them in the order of experts: copies, places, shares, and who goes where."""
    chosen = layer.model["moe_router_topk"]
    return chosen * (layer.item * (layer.shape.hidden + 1) + 8) + layer.experts * (layer.item + 1)
