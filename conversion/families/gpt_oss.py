"""gpt-oss (OpenAI 2025): experts with biases, a clamped gate, and an attention sink per head.

Every second layer, the first among them, sees a window; all rotate by YaRN, whose bounds are not whole dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.checkpoints.hf_files import DEFAULT_ROPE_SCALING
from conversion.families import gemma3, llama, qwen, qwen3_moe
from conversion.families.family import Family, Require
from conversion.families.llama import HF, MEGATRON
from conversion.families.mapping import Rename, TurnExperts
from conversion.families.mistral import window

EXPERTS = f"{MEGATRON}.mlp.experts.experts"

ATTENTION = (
    *(rule for rule in llama.PROJECTIONS if ".self_attention." in rule.megatron),
    qwen.QKV_BIAS,
    Rename(f"{HF}.self_attn.o_proj.bias", f"{MEGATRON}.self_attention.linear_proj.bias", ("hidden_size",)),
    Rename(f"{HF}.self_attn.sinks", f"{MEGATRON}.self_attention.core_attention.softmax_offset", ("num_attention_heads",)),
)

ROUTED = (
    Rename(f"{HF}.mlp.router.weight", f"{MEGATRON}.mlp.router.weight", ("num_moe_experts", "hidden_size")),
    Rename(f"{HF}.mlp.router.bias", f"{MEGATRON}.mlp.router.bias", ("num_moe_experts",)),
    TurnExperts(
        f"{HF}.mlp.experts.gate_up_proj",
        f"{EXPERTS}.linear_fc1.weight",
        ("num_moe_experts", "expert_gate_up_size", "hidden_size"),
        alternates=True,
    ),
    TurnExperts(
        f"{HF}.mlp.experts.gate_up_proj_bias", f"{EXPERTS}.linear_fc1.bias", ("num_moe_experts", "expert_gate_up_size"), alternates=True
    ),
    TurnExperts(f"{HF}.mlp.experts.down_proj", f"{EXPERTS}.linear_fc2.weight", ("num_moe_experts", "hidden_size", "moe_ffn_hidden_size")),
    Rename(f"{HF}.mlp.experts.down_proj_bias", f"{EXPERTS}.linear_fc2.bias", ("num_moe_experts", "hidden_size")),
)

TABLE = (*llama.OUTSIDE_LAYERS, *ATTENTION, *ROUTED, *qwen3_moe.NORMS)

ARCHITECTURE = {
    **llama.ARCHITECTURE,
    "activation_func": "quick_gelu",
    "activation_func_clamp_value": 7.0,
    "glu_linear_offset": 1.0,
    "add_bias_linear": True,
    "softmax_type": "learnable",
    "moe_router_pre_softmax": False,
}

REQUIREMENTS = (
    llama.NO_OTHER_ACTIVATION,
    llama.ALL_DIMENSIONS_ROTATE,
    Require("attention_bias", True, "transformers computes gpt-oss with biases in the attention, whatever the key says"),
    Require("swiglu_limit", 7.0, "transformers clamps the gates of gpt-oss at 7, whatever the key says"),
)

DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": DEFAULT_ROPE_SCALING["gpt_oss"],
    "sliding_window": 128,
    "layer_types": None,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
}


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for gpt-oss's config.json; see `llama.to_megatron`.

    Raises:
        ValueError: for windows in another order than a layer with one and a layer without, or without their length.
    """
    if config["sliding_window"] is None:
        raise ValueError(
            "sliding_window is null in config.json, but every second layer of gpt-oss has a window; give the number of tokens (128 in the"
            " published models)"
        )
    return {
        **llama.to_megatron(config),
        **window(config["sliding_window"]),
        "window_attn_skip_freq": gemma3.layers_of_a_period({**config, "sliding_window_pattern": 2}),
        "num_moe_experts": config["num_local_experts"],
        "moe_ffn_hidden_size": config["intermediate_size"],
        "moe_router_topk": config["num_experts_per_tok"],
    }


GPT_OSS = Family(
    "gpt_oss",
    TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=ARCHITECTURE,
    requirements=REQUIREMENTS,
    quantized=("mxfp4",),
)
