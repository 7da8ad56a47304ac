"""OLMo 2 (Team OLMo 2024): Llama with norms after attention and feed-forward instead of before, and norms over all queries and all keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.families import llama
from conversion.families.family import Family
from conversion.families.llama import HF, MEGATRON
from conversion.families.mapping import Rename

NORMS = (
    Rename(f"{HF}.self_attn.q_norm.weight", f"{MEGATRON}.self_attention.q_layernorm.weight", ("attention_size",)),
    Rename(f"{HF}.self_attn.k_norm.weight", f"{MEGATRON}.self_attention.k_layernorm.weight", ("key_size",)),
    Rename(f"{HF}.post_attention_layernorm.weight", f"{MEGATRON}.self_attention.linear_proj.post_layernorm.weight", ("hidden_size",)),
    Rename(f"{HF}.post_feedforward_layernorm.weight", f"{MEGATRON}.mlp.linear_fc2.post_layernorm.weight", ("hidden_size",)),
)

TABLE = (*llama.OUTSIDE_LAYERS, *llama.PROJECTIONS, *NORMS)

ARCHITECTURE = {**llama.ARCHITECTURE, "pre_norms": False, "post_norms": True, "norms_of_all_heads": True}

DEFAULTS = {**llama.DEFAULTS, "vocab_size": 50304, "rms_norm_eps": 1e-5}

REQUIREMENTS = tuple(rule for rule in llama.REQUIREMENTS if rule.key != "mlp_bias")  # which the library does not know here

ROPE_TYPES = ("default", "linear", "dynamic")  # others it refuses


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for OLMo 2's config.json; see `llama.to_megatron`."""
    return llama.to_megatron(config, rope_types=ROPE_TYPES)


OLMO2 = Family(
    "olmo2",
    TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=ARCHITECTURE,
    requirements=REQUIREMENTS,
)
