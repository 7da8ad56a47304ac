"""OPT (Zhang et al. 2022): pre-LayerNorm, ReLU, biases, learned positions that begin at row 2.

Hugging Face numbers the first real token 2; rows 0 and 1 of the position table belong to padding.  Megatron numbers it 0, so
its table begins at their row 2, and rows 0 and 1 are kept aside for the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.families.family import Family, Require
from conversion.families.mapping import FuseQKV, Rename, SplitRows

_HF = "model.decoder.layers.*"
_MEGATRON = "decoder.layers.*"

TABLE = (
    Rename("model.decoder.embed_tokens.weight", "embedding.word_embeddings.weight", ("vocab_size", "hidden_size")),
    SplitRows(
        "model.decoder.embed_positions.weight",
        "{kept.position_rows,embedding.position_embeddings.weight}",
        ("max_position_embeddings", "hidden_size"),
        num_kept_rows=2,
    ),
    Rename(f"{_HF}.self_attn_layer_norm.weight", f"{_MEGATRON}.self_attention.linear_qkv.layer_norm_weight", ("hidden_size",)),
    Rename(f"{_HF}.self_attn_layer_norm.bias", f"{_MEGATRON}.self_attention.linear_qkv.layer_norm_bias", ("hidden_size",)),
    FuseQKV(f"{_HF}.self_attn.{{q,k,v}}_proj.weight", f"{_MEGATRON}.self_attention.linear_qkv.weight", ("qkv_size", "hidden_size")),
    FuseQKV(f"{_HF}.self_attn.{{q,k,v}}_proj.bias", f"{_MEGATRON}.self_attention.linear_qkv.bias", ("qkv_size",)),
    Rename(f"{_HF}.self_attn.out_proj.weight", f"{_MEGATRON}.self_attention.linear_proj.weight", ("hidden_size", "attention_size")),
    Rename(f"{_HF}.self_attn.out_proj.bias", f"{_MEGATRON}.self_attention.linear_proj.bias", ("hidden_size",)),
    # In Hugging Face's OPT the norm before the feed-forward part of each layer bears the name of a final one.
    Rename(f"{_HF}.final_layer_norm.weight", f"{_MEGATRON}.mlp.linear_fc1.layer_norm_weight", ("hidden_size",)),
    Rename(f"{_HF}.final_layer_norm.bias", f"{_MEGATRON}.mlp.linear_fc1.layer_norm_bias", ("hidden_size",)),
    Rename(f"{_HF}.fc1.weight", f"{_MEGATRON}.mlp.linear_fc1.weight", ("ffn_hidden_size", "hidden_size")),
    Rename(f"{_HF}.fc1.bias", f"{_MEGATRON}.mlp.linear_fc1.bias", ("ffn_hidden_size",)),
    Rename(f"{_HF}.fc2.weight", f"{_MEGATRON}.mlp.linear_fc2.weight", ("hidden_size", "ffn_hidden_size")),
    Rename(f"{_HF}.fc2.bias", f"{_MEGATRON}.mlp.linear_fc2.bias", ("hidden_size",)),
    Rename("model.decoder.final_layer_norm.{weight,bias}", "decoder.final_layernorm.{weight,bias}", ("hidden_size",)),
    Rename("lm_head.weight", "output_layer.weight", ("vocab_size", "hidden_size"), when="not share_embeddings_and_output_weights"),
)

REQUIREMENTS = (
    Require("do_layer_norm_before", True, "post-LayerNorm models such as opt-350m are not supported, the engine has no such layer"),
    Require("enable_bias", True, "models without biases, such as Galactica, are not supported"),
    Require("layer_norm_elementwise_affine", True, "models whose norms have no weights, such as Galactica's largest, are not supported"),
    Require("_remove_final_layer_norm", False, "models without the final norm are not supported"),
    Require("activation_function", "relu", "OPT models with another activation are not supported"),
)

DEFAULTS = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "word_embed_proj_dim": None,
    "ffn_dim": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "init_std": 0.02,
}


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's configuration for OPT's config.json.

    Raises:
        ValueError: if the embedding is narrower than the model.
    """
    projected = config["word_embed_proj_dim"]
    if projected not in (None, config["hidden_size"]):
        raise ValueError(
            f"word_embed_proj_dim ({projected}) differs from hidden_size ({config['hidden_size']}) in config.json:"
            " models with projected embeddings such as opt-350m are not supported"
        )
    return {
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["ffn_dim"],
        "num_attention_heads": config["num_attention_heads"],
        "num_query_groups": config["num_attention_heads"],
        "max_position_embeddings": config["max_position_embeddings"],
        "vocab_size": config["vocab_size"],
        "init_method_std": config["init_std"],
        "layernorm_epsilon": 1e-5,  # torch's default, which Hugging Face's OPT does not change
    }


OPT = Family("opt", TABLE, to_megatron, engine="nemo_patches.opt_model:opt_config", defaults=DEFAULTS, requirements=REQUIREMENTS)
