"""Qwen 3 with experts (Yang et al. 2025): mixture-of-experts feed-forward layers, of which a router selects some for each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.families import llama, qwen
from conversion.families.family import Family, Require
from conversion.families.llama import HF, MEGATRON
from conversion.families.mapping import Rename, StackExperts

EXPERTS = "mlp.experts.#"

ROUTED = (
    Rename(f"{HF}.mlp.gate.weight", f"{MEGATRON}.mlp.router.weight", ("num_moe_experts", "hidden_size")),
    StackExperts(
        f"{HF}.{EXPERTS}.{{gate,up}}_proj.weight",
        f"{MEGATRON}.mlp.experts.experts.linear_fc1.weight",
        ("num_moe_experts", "expert_gate_up_size", "hidden_size"),
    ),
    StackExperts(
        f"{HF}.{EXPERTS}.down_proj.weight",
        f"{MEGATRON}.mlp.experts.experts.linear_fc2.weight",
        ("num_moe_experts", "hidden_size", "moe_ffn_hidden_size"),
    ),
)

# The router sees the norm's result, so that norm is a module of its own.
NORMS = (llama.NORMS[0], Rename(f"{HF}.post_attention_layernorm.weight", f"{MEGATRON}.pre_mlp_layernorm.weight", ("hidden_size",)))

_OF_ONE_PART = ("mlp.linear_fc1.weight", "mlp.linear_fc2.weight")

TABLE = (
    *llama.OUTSIDE_LAYERS,
    *(rule for rule in llama.PROJECTIONS if not rule.megatron.endswith(_OF_ONE_PART)),
    *ROUTED,
    *NORMS,
    qwen.QK_NORMS,
)

DEFAULTS = {
    **qwen.DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": False,
    "mlp_only_layers": None,
}

REQUIREMENTS = (
    *qwen.REQUIREMENTS,
    Require("use_sliding_window", False, "models with sliding-window attention are not supported"),
    Require("attention_bias", False, "models with biases in the attention are not supported"),
    Require("decoder_sparse_step", 1, "models in which some layers have no experts are not supported"),
    Require("mlp_only_layers", None, "models in which some layers have no experts are not supported", also=([],)),
)


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for Qwen 3's config.json with experts; see `llama.to_megatron`."""
    return {
        **qwen.to_megatron(config),
        "num_moe_experts": config["num_experts"],
        "moe_ffn_hidden_size": config["moe_intermediate_size"],
        "moe_router_topk": config["num_experts_per_tok"],
        # The chosen experts' shares add up to 1, or are what is theirs of all.
        "moe_router_pre_softmax": not config["norm_topk_prob"],
    }


QWEN3_MOE = Family(
    "qwen3_moe",
    TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture={**llama.ARCHITECTURE, "qk_layernorm": True},
    requirements=REQUIREMENTS,
)
