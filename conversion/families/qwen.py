"""Dense Qwen 2, 2.5 and 3 (Yang et al. 2024, 2025): Llama with biases on query, key and value, or with norms on query and key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from conversion.families import llama
from conversion.families.family import Family, Require
from conversion.families.llama import HF, MEGATRON
from conversion.families.mapping import FuseQKV, Rename
from conversion.families.mistral import window

QKV_BIAS = FuseQKV(f"{HF}.self_attn.{{q,k,v}}_proj.bias", f"{MEGATRON}.self_attention.linear_qkv.bias", ("qkv_size",))
QK_NORMS = Rename(f"{HF}.self_attn.{{q,k}}_norm.weight", f"{MEGATRON}.self_attention.{{q,k}}_layernorm.weight", ("head_dim",))

DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}

REQUIREMENTS = (llama.NO_OTHER_ACTIVATION, llama.ALL_DIMENSIONS_ROTATE)

FULL, WINDOW = "full_attention", "sliding_attention"


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for Qwen's config.json; see `llama.to_megatron`."""
    return {**llama.to_megatron(config), **_windows(config)}


def _windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """The window and which layers have it: those that `layer_types` names, else those from `max_window_layers` on.

    Raises:
        ValueError: if layers are said to have a window that has no length, or not each layer is named.
    """
    num_layers, tokens = config["num_hidden_layers"], config["sliding_window"] if config["use_sliding_window"] else None
    if (types := config["layer_types"]) is None:
        types = [WINDOW if layer >= config["max_window_layers"] else FULL for layer in range(num_layers)] if tokens is not None else []
    elif len(types) != num_layers or set(types) - {FULL, WINDOW}:
        raise ValueError(f"layer_types in config.json does not say {FULL} or {WINDOW} for each of the {num_layers} layers")
    if WINDOW not in types:
        return {}
    if tokens is None:
        raise ValueError(
            f"layer_types in config.json names {WINDOW}, which has no length: set use_sliding_window to true and sliding_window to the number"
            " of tokens that the model was trained with"
        )
    return {**window(tokens), **({"window_attn_skip_freq": [int(kind == WINDOW) for kind in types]} if FULL in types else {})}


QWEN2 = Family(
    "qwen2",
    (*llama.TABLE, QKV_BIAS),
    to_megatron,
    defaults=DEFAULTS,
    architecture={**llama.ARCHITECTURE, "add_qkv_bias": True},
    requirements=REQUIREMENTS,
    nemo=partial(llama.nemo_classes, module="qwen2", model="Qwen2Model", config="Qwen2Config"),
)

QWEN3 = Family(
    "qwen3",
    (*llama.TABLE, QK_NORMS),
    to_megatron,
    defaults={**DEFAULTS, "head_dim": 128},
    architecture={**llama.ARCHITECTURE, "qk_layernorm": True},
    requirements=(*REQUIREMENTS, Require("attention_bias", False, "models with biases in the attention are not supported")),
    nemo=partial(llama.nemo_classes, module="qwen3", model="Qwen3Model", config="Qwen3Config"),
)
