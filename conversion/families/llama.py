"""Llama 2 and 3 (Touvron et al. 2023, Dubey et al. 2024): RMSNorm, gated SiLU, rotary positions, biases only where config.json says so.

Most families since are this one with a few rows more, so they take their rows from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from conversion.families.family import Family, NeMoClasses, Require
from conversion.families.mapping import Drop, FuseGateUp, FuseQKV, Rename

HF = "model.layers.*"
MEGATRON = "decoder.layers.*"

OUTSIDE_LAYERS = (
    Rename("model.embed_tokens.weight", "embedding.word_embeddings.weight", ("vocab_size", "hidden_size")),
    Rename("model.norm.weight", "decoder.final_layernorm.weight", ("hidden_size",)),
    Rename("lm_head.weight", "output_layer.weight", ("vocab_size", "hidden_size"), when="not share_embeddings_and_output_weights"),
)

PROJECTIONS = (
    FuseQKV(f"{HF}.self_attn.{{q,k,v}}_proj.weight", f"{MEGATRON}.self_attention.linear_qkv.weight", ("qkv_size", "hidden_size")),
    Rename(f"{HF}.self_attn.o_proj.weight", f"{MEGATRON}.self_attention.linear_proj.weight", ("hidden_size", "attention_size")),
    FuseGateUp(f"{HF}.mlp.{{gate,up}}_proj.weight", f"{MEGATRON}.mlp.linear_fc1.weight", ("gate_up_size", "hidden_size")),
    Rename(f"{HF}.mlp.down_proj.weight", f"{MEGATRON}.mlp.linear_fc2.weight", ("hidden_size", "ffn_hidden_size")),
    Drop(f"{HF}.self_attn.rotary_emb.inv_freq", because="computed from rope_theta; old checkpoints carry it"),
)

NORMS = (
    Rename(f"{HF}.input_layernorm.weight", f"{MEGATRON}.self_attention.linear_qkv.layer_norm_weight", ("hidden_size",)),
    Rename(f"{HF}.post_attention_layernorm.weight", f"{MEGATRON}.mlp.linear_fc1.layer_norm_weight", ("hidden_size",)),
)

TABLE = (*OUTSIDE_LAYERS, *PROJECTIONS, *NORMS)

BIASES = (
    FuseQKV(f"{HF}.self_attn.{{q,k,v}}_proj.bias", f"{MEGATRON}.self_attention.linear_qkv.bias", ("qkv_size",), when="add_qkv_bias"),
    Rename(f"{HF}.self_attn.o_proj.bias", f"{MEGATRON}.self_attention.linear_proj.bias", ("hidden_size",), when="add_proj_bias"),
    FuseGateUp(f"{HF}.mlp.{{gate,up}}_proj.bias", f"{MEGATRON}.mlp.linear_fc1.bias", ("gate_up_size",), when="add_bias_linear"),
    Rename(f"{HF}.mlp.down_proj.bias", f"{MEGATRON}.mlp.linear_fc2.bias", ("hidden_size",), when="add_bias_linear"),
)

ARCHITECTURE = {
    "normalization": "RMSNorm",
    "activation_func": "silu",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "position_embedding_type": "rope",
}

NO_OTHER_ACTIVATION = Require("hidden_act", "silu", "models with another activation are not supported", also=("swish",))
ALL_DIMENSIONS_ROTATE = Require("partial_rotary_factor", 1.0, "models with partial rotary embeddings are not supported")

REQUIREMENTS = (
    NO_OTHER_ACTIVATION,
    ALL_DIMENSIONS_ROTATE,
    Require("attention_bias", False, "models with biases in the attention are not supported"),
    Require("mlp_bias", False, "models with biases in the feed-forward layers are not supported"),
)

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
}

ROPE_TYPES = ("default", "llama3", "linear", "dynamic", "yarn")


def to_megatron(config: Mapping[str, Any], *, rope_types: Sequence[str] = ROPE_TYPES) -> dict[str, Any]:
    """Megatron's numbers for a config.json of Llama or of a family that uses the same words.

    Args:
        rope_types: types of rotary positions that are covered.

    Raises:
        ValueError: for rotary positions of a type that is not supported.
    """
    heads = config["num_attention_heads"]
    numbers = {
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "num_attention_heads": heads,
        # The first Llama 2 files do not say how many key heads there are: as many as queries.
        "num_query_groups": heads if config["num_key_value_heads"] is None else config["num_key_value_heads"],
        "max_position_embeddings": config["max_position_embeddings"],
        "vocab_size": config["vocab_size"],
        "init_method_std": config["initializer_range"],
        "layernorm_epsilon": config["rms_norm_eps"],
        **rotary_positions(config, rope_types=rope_types),
    }
    if config["head_dim"] is not None:
        numbers["kv_channels"] = config["head_dim"]
    return numbers


def rotary_positions(config: Mapping[str, Any], *, rope_types: Sequence[str]) -> dict[str, Any]:
    """The base of the rotations, and by which numbers some or all are slowed down.

    `dynamic` slows them down beyond `max_position_embeddings` alone, where no training goes.

    Raises:
        ValueError: for a type other than those of `rope_types`.
    """
    rope = config["rope_scaling"] or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in rope_types:
        raise ValueError(
            f"rope_scaling in config.json is of the type {rope_type!r}, which is not supported; known are {', '.join(rope_types)}"
        )
    slower: dict[str, Any] = {}
    if rope_type == "llama3":
        slower = {
            "scale_factor": rope["factor"],
            "low_freq_factor": rope["low_freq_factor"],
            "high_freq_factor": rope["high_freq_factor"],
            "old_context_len": rope["original_max_position_embeddings"],
        }
    elif rope_type == "linear":
        slower = {"seq_len_interpolation_factor": rope["factor"]}
    elif rope_type == "yarn":
        slower = _yarn(rope, config["max_position_embeddings"])
    return {"rotary_base": config["rope_theta"], **slower}


def _yarn(rope: Mapping[str, Any], positions: int) -> dict[str, Any]:
    """YaRN's numbers (Peng et al. 2023): which rotations are slowed down by how much, and what queries and keys are multiplied with."""
    factor, attention = rope["factor"], rope.get("attention_factor")
    if attention is None:
        above, below = rope.get("mscale"), rope.get("mscale_all_dim")
        attention = _yarn_scale(factor, above) / _yarn_scale(factor, below) if above and below else _yarn_scale(factor, 1.0)
    return {
        "yarn_factor": factor,
        "yarn_old_context_len": rope.get("original_max_position_embeddings") or positions,
        "yarn_beta_fast": rope.get("beta_fast") or 32,
        "yarn_beta_slow": rope.get("beta_slow") or 1,
        "yarn_truncate": bool(rope.get("truncate", True)),
        "yarn_attention_factor": attention,
    }


def _yarn_scale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def nemo_classes(megatron: Mapping[str, Any], *, module: str, model: str, config: str) -> NeMoClasses | None:
    """NeMo's classes of a family; none knows YaRN, LongRoPE, attention temperatures, a bias behind the attention alone, windows by layer."""
    of_ours = ("yarn_factor", "longrope_positions", "query_temperature_beta", "add_proj_bias")
    is_ours = any(key in megatron for key in of_ours) or isinstance(megatron.get("window_attn_skip_freq"), list)
    return None if is_ours else NeMoClasses(f"nemo.collections.llm.gpt.model.{module}", model=model, config=config)


def _with_biases(config: Mapping[str, Any]) -> dict[str, Any]:
    attention, mlp = bool(config["attention_bias"]), bool(config["mlp_bias"])
    if mlp and not attention:
        raise ValueError(
            "mlp_bias is true in config.json and attention_bias is not: models with biases in the feed-forward layers alone are not supported"
        )
    return {**to_megatron(config), **({"add_qkv_bias": True, "add_proj_bias": True, "add_bias_linear": mlp} if attention else {})}


def _nemo(megatron: Mapping[str, Any]) -> NeMoClasses | None:
    config = "Llama31Config" if "scale_factor" in megatron else "LlamaConfig"
    return nemo_classes(megatron, module="llama", model="LlamaModel", config=config)


LLAMA = Family(
    "llama",
    (*TABLE, *BIASES),
    _with_biases,
    defaults={**DEFAULTS, "attention_bias": False, "mlp_bias": False},
    architecture=ARCHITECTURE,
    requirements=(NO_OTHER_ACTIVATION, ALL_DIMENSIONS_ROTATE),
    nemo=_nemo,
)
