"""Gemma 2 (Riviere et al. 2024): four norms per layer whose weights count from 1, tanh caps on scores and logits, scaled embeddings.

Every second layer, beginning with the first, sees a window of the last `sliding_window` tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from conversion.families import llama
from conversion.families.family import Family, Require
from conversion.families.llama import HF, MEGATRON
from conversion.families.mapping import Rename
from conversion.families.mistral import window

NORMS = (
    Rename(f"{HF}.input_layernorm.weight", f"{MEGATRON}.self_attention.linear_qkv.layer_norm_weight", ("hidden_size",)),
    Rename(f"{HF}.post_attention_layernorm.weight", f"{MEGATRON}.self_attention.linear_proj.post_layernorm.weight", ("hidden_size",)),
    Rename(f"{HF}.pre_feedforward_layernorm.weight", f"{MEGATRON}.mlp.linear_fc1.layer_norm_weight", ("hidden_size",)),
    Rename(f"{HF}.post_feedforward_layernorm.weight", f"{MEGATRON}.mlp.linear_fc2.post_layernorm.weight", ("hidden_size",)),
)

TABLE = (*llama.OUTSIDE_LAYERS, *llama.PROJECTIONS, *NORMS)

ARCHITECTURE = {
    **llama.ARCHITECTURE,
    "activation_func": "gelu_tanh",
    "layernorm_zero_centered_gamma": True,
    "post_norms": True,
    "scale_embeddings": True,
    "window_attn_skip_freq": 2,
}

DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}

REQUIREMENTS = (
    llama.ALL_DIMENSIONS_ROTATE,
    Require("hidden_activation", "gelu_pytorch_tanh", "models with another activation are not supported"),
    Require("attention_bias", False, "models with biases in the attention are not supported"),
    Require("use_bidirectional_attention", False, "models with bidirectional attention are not supported", also=(None,)),
)


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for Gemma 2's config.json; see `llama.to_megatron`.

    Raises:
        ValueError: if other layers than the first, the third and so on have a window, or those have none.
    """
    found = config["layer_types"] or []
    if found != [("sliding_attention", "full_attention")[layer % 2] for layer in range(len(found))]:
        raise ValueError(
            "layer_types in config.json does not alternate between sliding_attention and full_attention: such models are not supported"
        )
    caps = {key: config[key] for key in ("attn_logit_softcapping", "final_logit_softcapping") if config[key] is not None}
    return {
        **llama.to_megatron(config),
        **_window(config["sliding_window"]),
        **caps,
        "query_pre_attn_scalar": config["query_pre_attn_scalar"],
    }


def _window(tokens: int | None) -> dict[str, list[int]]:
    if tokens is None:
        raise ValueError(
            "sliding_window is null in config.json, but every second layer of Gemma 2 has a window, which transformers cannot compute"
            " without its length; give the number of tokens (4096 in the published models)"
        )
    return window(tokens)


GEMMA2 = Family(
    "gemma2",
    TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=ARCHITECTURE,
    requirements=REQUIREMENTS,
    nemo=partial(llama.nemo_classes, module="gemma2", model="Gemma2Model", config="Gemma2Config"),
)
