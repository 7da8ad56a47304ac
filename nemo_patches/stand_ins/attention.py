"""TransformerEngine's attention, by the formula: causal, perhaps with a window, over whole samples or over documents of given lengths."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from nemo_patches.fake_devices.world import on_gpu
from nemo_patches.stand_ins.base import ANY, ExtraState, require_defaults

_TAKEN = {
    "attention_type": "self",
    "qkv_format": "sbhd",
    "softmax_type": "vanilla",
    "layer_number": ANY,
    "cp_global_ranks": ANY,
    "cp_stream": ANY,
}


class DotProductAttention(ExtraState):
    """softmax(q k^T * scale) v; which of its kernels TransformerEngine would choose is not shown."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        cp_group: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        **others: Any,
    ) -> None:
        super().__init__()
        require_defaults("TransformerEngine's attention", {**others, "softmax_type": softmax_type}, _TAKEN)
        if cp_group is not None and window_size is not None and cp_comm_type == "p2p":
            raise ValueError("around a ring of ranks TransformerEngine's attention knows no windows; cp_comm_type all_gather does")
        self.cp_group = cp_group
        self.tp_size = torch.distributed.get_world_size(tp_group) if tp_group is not None else tp_size
        self.window_size, self.softmax_type = window_size, softmax_type
        self.scale = 1.0 / math.sqrt(kv_channels) if softmax_scale is None else softmax_scale
        self.attention_dropout, self._tracker = attention_dropout, get_rng_state_tracker
        # Checkpoints without its extra state are accepted, as Megatron saves none.
        self.register_load_state_dict_post_hook(_forgive_extra_state)
        self._fork_tracker = get_rng_state_tracker is not None and not sequence_parallel

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Tensor | None = None,
        *,
        attn_mask_type: str,
        qkv_format: str = "sbhd",
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query_layer: (sequence, batch, heads, head_dim), in the format "thd" (tokens, heads, head_dim)
            key_layer, value_layer: (sequence, batch, query_groups, head_dim), or (tokens, query_groups, head_dim)
            attention_mask: is looked at only for mask types that name padding, none of which is here.
            cu_seqlens_q, cu_seqlens_kv: (documents + 1,) int32, in the format "thd": first token of each, and one past the last.

        Returns:
            (sequence, batch, heads * head_dim), or (tokens, heads * head_dim)
        """
        layers = query_layer, key_layer, value_layer
        if qkv_format == "thd" and attn_mask_type in ("padding_causal", "padding_causal_bottom_right"):
            if cu_seqlens_q is None or cu_seqlens_kv is None or self.cp_group is not None:
                raise NotImplementedError("the stand-in for TransformerEngine has documents of given lengths on one rank alone")
            if on_gpu(query_layer):  # in a rehearsal, where bounds have no values: documents of equal length, none longer than the longest
                pieces = -(-len(query_layer) // max_seqlen_q)  # type: ignore[operator]
                return self._attend_each([[(len(x) + place) // pieces for place in range(pieces)] for x in layers], layers)
            if attn_mask_type == "padding_causal" and not torch.equal(cu_seqlens_q, cu_seqlens_kv):
                raise NotImplementedError("the stand-in for TransformerEngine has this mask of documents of the same lengths alone")
            of_queries, of_keys = (bounds.diff().tolist() for bounds in (cu_seqlens_q, cu_seqlens_kv))
            for name, given, found in (("q", max_seqlen_q, max(of_queries)), ("kv", max_seqlen_kv, max(of_keys))):
                if given != found:
                    raise ValueError(f"max_seqlen_{name} is {given}, but the longest document has {found} tokens")
            return self._attend_each([of_queries, of_keys, of_keys], layers)
        if (qkv_format, attn_mask_type) != ("sbhd", "causal"):
            raise NotImplementedError(f"the stand-in for TransformerEngine has no format {qkv_format} with the mask {attn_mask_type}")
        if self.cp_group is None or self.cp_group.size() == 1:
            return self._attend(query_layer, key_layer, value_layer, last=len(key_layer))
        from nemo_patches.context_parallel import Part, attend_over_pieces, spans  # and so Megatron-core, which has to come later

        # Around a ring or by gathering, the same is sent: keys and values forward and backward, and their gradients.
        mine = spans(len(query_layer), rank=self.cp_group.rank(), size=self.cp_group.size())
        parts = [Part(span.rows, slice(None), slice(0, span.end), partial(self._attend, last=span.end)) for span in mine]
        draws = self.training and self.attention_dropout > 0
        return attend_over_pieces(query_layer, key_layer, value_layer, parts, group=self.cp_group, draws=draws)

    def _attend_each(self, lengths: list[list[int]], layers: tuple[Tensor, ...]) -> Tensor:
        documents = zip(*(x.split(its) for x, its in zip(layers, lengths, strict=True)), strict=True)
        return torch.cat([self._attend(*(x.unsqueeze(1) for x in each), last=len(each[1])).squeeze(1) for each in documents])

    def _attend(self, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor, *, last: int) -> Tensor:
        """As `forward`, of queries of which the last one sees so many keys, and each before it one less."""
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query_layer, key_layer, value_layer))
        if on_gpu(query):  # in a rehearsal: as much as a flash kernel keeps, which knows windows and groups
            rate = self.attention_dropout if self.training else 0.0
            mixed = F.scaled_dot_product_attention(query, key, value, None, rate, is_causal=True, scale=self.scale, enable_gqa=True)
            return mixed.permute(2, 0, 1, 3).flatten(2)
        repeats = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
        own = last - query.shape[2]  # key of the first query
        visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril(own)
        if self.window_size is not None and self.window_size[0] >= 0:
            visible = visible.triu(own - self.window_size[0])
        scores = (query @ key.transpose(-1, -2)).float() * self.scale
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).to(value.dtype)
        with self._tracker().fork() if self._fork_tracker and self._tracker is not None else contextlib.nullcontext():
            weights = F.dropout(weights, self.attention_dropout, self.training)
        return (weights @ value).permute(2, 0, 1, 3).flatten(2)


def _forgive_extra_state(module: DotProductAttention, keys: Any) -> None:
    keys.missing_keys[:] = [key for key in keys.missing_keys if "core_attention._extra_state" not in key]
