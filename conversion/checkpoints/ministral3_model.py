"""Ministral 3 for transformers 4, which has no class of it: Mistral's with YaRN and an attention temperature that depends on the position.

Names and numbers are those of transformers 5, which loads the same folders by a class of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, MistralConfig, MistralForCausalLM, MistralModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.mistral.modeling_mistral import MistralAttention, apply_rotary_pos_emb, eager_attention_forward


class Ministral3Config(MistralConfig):  # type: ignore[misc]
    """The values of a config.json; `register` gives the defaults."""

    model_type = "ministral3"
    defaults: ClassVar[Mapping[str, Any]]

    def __init__(self, **values: Any) -> None:
        super().__init__(**{"pad_token_id": 11, **self.defaults, **values})
        self.rope_scaling = values.get("rope_scaling") or dict(self.defaults["rope_scaling"])


class Ministral3Attention(MistralAttention):  # type: ignore[misc]
    """Attention whose queries are multiplied by 1 + beta * log(1 + floor(position / positions))."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        past_key_values: Any = None,
        cache_position: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """See `MistralAttention.forward`; `position_ids`, (batch, length), are among the options."""
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (linear(hidden_states).view(heads).transpose(1, 2) for linear in (self.q_proj, self.k_proj, self.v_proj))
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        query = query * self._temperature(options["position_ids"]).to(query.dtype)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx, {"cache_position": cache_position})
        kernel = self.config._attn_implementation
        attend = eager_attention_forward if kernel == "eager" else ALL_ATTENTION_FUNCTIONS[kernel]
        dropout = self.attention_dropout if self.training else 0.0
        window = self.config.sliding_window
        context, weights = attend(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, sliding_window=window, **options
        )
        return self.o_proj(context.flatten(2)), weights

    def _temperature(self, positions: Tensor) -> Tensor:
        """(batch, 1, length, 1)"""
        rope = self.config.rope_scaling
        periods = torch.floor(positions / rope["original_max_position_embeddings"])
        scale: Tensor = 1 + rope["llama_4_scaling_beta"] * torch.log(1 + periods)
        return scale[:, None, :, None]


class Ministral3Model(MistralModel):  # type: ignore[misc]
    """The layers."""

    config_class = Ministral3Config

    def __init__(self, config: Ministral3Config) -> None:
        super().__init__(config)
        for layer in self.layers:
            layer.self_attn.__class__ = Ministral3Attention  # the modules and their values are the same


class Ministral3ForCausalLM(MistralForCausalLM):  # type: ignore[misc]
    """The layers with logits."""

    config_class = Ministral3Config

    def __init__(self, config: Ministral3Config) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.__class__ = Ministral3Attention


def register(defaults: Mapping[str, Any]) -> None:
    """Have transformers load the type, with values for the keys that a config.json lacks."""
    Ministral3Config.defaults = defaults
    AutoConfig.register(Ministral3Config.model_type, Ministral3Config, exist_ok=True)
    AutoModel.register(Ministral3Config, Ministral3Model, exist_ok=True)
    AutoModelForCausalLM.register(Ministral3Config, Ministral3ForCausalLM, exist_ok=True)
