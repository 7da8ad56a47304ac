"""Phi-3 and Phi-4 (Abdin et al. 2024), dense: Llama with fused projections; some have partial rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from conversion.families import llama
from conversion.families.family import Family
from conversion.families.llama import HF, MEGATRON
from conversion.families.mapping import FuseGateUp, FuseQKV, GroupQKV, Rename
from conversion.families.mistral import window

TABLE = (
    *llama.OUTSIDE_LAYERS,
    *(rule for rule in llama.PROJECTIONS if not isinstance(rule, FuseQKV | FuseGateUp)),
    GroupQKV(f"{HF}.self_attn.qkv_proj.weight", f"{MEGATRON}.self_attention.linear_qkv.weight", ("qkv_size", "hidden_size")),
    Rename(f"{HF}.mlp.gate_up_proj.weight", f"{MEGATRON}.mlp.linear_fc1.weight", ("gate_up_size", "hidden_size")),
    *llama.NORMS,
)

DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "original_max_position_embeddings": 4096,
    "sliding_window": None,
    "partial_rotary_factor": 1.0,
}

ROPE_TYPES = ("default", "longrope", "su")  # of which the last was the second's first name


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for Phi-3's config.json; see `llama.to_megatron`.

    Raises:
        ValueError: if a head has no whole pairs of dimensions that rotate, or LongRoPE's factors are not as many.
    """
    numbers = llama.to_megatron(config, rope_types=ROPE_TYPES)
    tokens, share = config["sliding_window"], config["partial_rotary_factor"]
    head_dim = numbers.get("kv_channels", numbers["hidden_size"] // numbers["num_attention_heads"])
    if not 0 < share <= 1 or int(head_dim * share) % 2 or not int(head_dim * share):
        raise ValueError(
            f"partial_rotary_factor in config.json is {share}, of the {head_dim} dimensions of a head; expected a share of them that is an even number"
        )
    return {
        **numbers,
        **(window(tokens) if tokens is not None else {}),
        **({"rotary_percent": share} if share != 1 else {}),
        **_long_rope(config, int(head_dim * share) // 2),
    }


def _long_rope(config: Mapping[str, Any], num_rotations: int) -> dict[str, Any]:
    """LongRoPE's factors, and what queries and keys are multiplied with where they rotate (Ding et al. 2024; by default as transformers has it)."""
    rope, positions = config["rope_scaling"] or {}, config["original_max_position_embeddings"]
    if rope.get("rope_type", rope.get("type", "default")) == "default":
        return {}
    for key in ("short_factor", "long_factor"):
        if len(rope[key]) != num_rotations:
            raise ValueError(
                f"rope_scaling in config.json has {len(rope[key])} numbers as {key}; expected one for each of the {num_rotations} rotations of a head"
            )
    longer, attention = config["max_position_embeddings"] / positions, rope.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(longer) / math.log(positions)) if longer > 1 else 1.0
    return {
        "longrope_short_factor": rope["short_factor"],
        "longrope_long_factor": rope["long_factor"],
        "longrope_positions": positions,
        "longrope_attention_factor": attention,
    }


PHI3 = Family(
    "phi3",
    TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=llama.ARCHITECTURE,
    requirements=(llama.NO_OTHER_ACTIVATION,),
    nemo=partial(llama.nemo_classes, module="phi3mini", model="Phi3Model", config="Phi3Config"),
)
