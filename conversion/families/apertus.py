"""Apertus (Hernandez-Cano et al. 2025): xIELU without a gate, with two learned slopes per layer; norms on query and key."""

from __future__ import annotations

from conversion.checkpoints.hf_files import DEFAULT_ROPE_SCALING
from conversion.families import llama
from conversion.families.family import Family, Require
from conversion.families.llama import HF, MEGATRON
from conversion.families.mapping import FuseGateUp, KeepConstant, Rename
from conversion.families.qwen import QK_NORMS

XIELU = (
    Rename(f"{HF}.mlp.act_fn.{{alpha_p,alpha_n}}", f"{MEGATRON}.mlp.activation_func.{{alpha_p,alpha_n}}", ("single",)),
    KeepConstant(f"{HF}.mlp.act_fn.beta", "kept.layers.*.xielu_beta", value=0.5),
    KeepConstant(f"{HF}.mlp.act_fn.eps", "kept.layers.*.xielu_eps", value=-1e-6),
)

NORMS = (
    Rename(f"{HF}.attention_layernorm.weight", f"{MEGATRON}.self_attention.linear_qkv.layer_norm_weight", ("hidden_size",)),
    Rename(f"{HF}.feedforward_layernorm.weight", f"{MEGATRON}.mlp.linear_fc1.layer_norm_weight", ("hidden_size",)),
    QK_NORMS,
)

TABLE = (
    *llama.OUTSIDE_LAYERS,
    *(rule for rule in llama.PROJECTIONS if not isinstance(rule, FuseGateUp)),
    Rename(f"{HF}.mlp.up_proj.weight", f"{MEGATRON}.mlp.linear_fc1.weight", ("ffn_hidden_size", "hidden_size")),
    *XIELU,
    *NORMS,
)

ARCHITECTURE = {**llama.ARCHITECTURE, "activation_func": "xielu", "gated_linear_unit": False, "qk_layernorm": True}

DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 131072,
    "intermediate_size": 14336,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 12000000.0,
    "rope_scaling": DEFAULT_ROPE_SCALING["apertus"],
}

_PASSED_OVER = "transformers ignores this key, so that its model would differ from the one that these weights are of"

REQUIREMENTS = (
    Require("hidden_act", "xielu", "models with another activation are not supported"),
    *(rule for rule in llama.REQUIREMENTS if rule.key in ("partial_rotary_factor", "attention_bias", "mlp_bias")),
    # Keys that published files have of the program that they were trained with.
    Require("post_norm", False, _PASSED_OVER),
    Require("qk_norm", True, _PASSED_OVER),
)

APERTUS = Family(
    "apertus",
    TABLE,
    llama.to_megatron,
    defaults=DEFAULTS,
    architecture=ARCHITECTURE,
    requirements=REQUIREMENTS,
)
