"""Dense Qwen 2, 2.5 and 3 (Yang et al. 2024, 2025): Llama with biases at query, key and value, or with norms on query and key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from conversion.families import llama
from conversion.families.family import Family, Require
from conversion.families.llama import HF, MEGATRON
from conversion.families.mapping import FuseQKV, Rename

QKV_BIAS = FuseQKV(f"{HF}.self_attn.{{q,k,v}}_proj.bias", f"{MEGATRON}.self_attention.linear_qkv.bias", ("qkv_size",))
QK_NORMS = Rename(f"{HF}.self_attn.{{q,k}}_norm.weight", f"{MEGATRON}.self_attention.{{q,k}}_layernorm.weight", ("head_dim",))

DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}

REQUIREMENTS = (
    llama.NO_OTHER_ACTIVATION,
    llama.ALL_DIMENSIONS_ROTATE,
    Require("use_sliding_window", False, "models that limit the attention of their upper layers to a window are not covered"),
)


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for Qwen's config.json; see `llama.to_megatron`.

    Raises:
        ValueError: if a layer is said to have a window.
    """
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError("layer_types in config.json names others than full_attention: models with windows are not covered")
    return llama.to_megatron(config)


QWEN2 = Family(
    "qwen2",
    (*llama.TABLE, QKV_BIAS),
    to_megatron,
    engine=llama.ENGINE,
    defaults=DEFAULTS,
    architecture={**llama.ARCHITECTURE, "add_qkv_bias": True},
    requirements=REQUIREMENTS,
    nemo=partial(llama.nemo_classes, module="qwen2", model="Qwen2Model", config="Qwen2Config"),
)

QWEN3 = Family(
    "qwen3",
    (*llama.TABLE, QK_NORMS),
    to_megatron,
    engine=llama.ENGINE,
    defaults={**DEFAULTS, "head_dim": 128},
    architecture={**llama.ARCHITECTURE, "qk_layernorm": True},
    requirements=(*REQUIREMENTS, Require("attention_bias", False, "models with biases in the attention are not covered")),
    nemo=partial(llama.nemo_classes, module="qwen3", model="Qwen3Model", config="Qwen3Config"),
)
