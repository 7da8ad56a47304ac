"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020): encoders with post-LayerNorm, exact GELU, biases, learned positions that begin at row 2.

Hugging Face numbers positions from the id of the padding token + 1 on; rows 0 and 1 of the position table belong to padding.  Megatron
numbers them from 0, so its table begins at their row 2, and rows 0 and 1 are kept aside for the way back, as is the pooling layer of
published models, which no masked model has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.families.family import Family, Require
from conversion.mapping import Drop, Duplicate, FuseQKV, KeepAside, Rename, SplitRows

_HF = "roberta.encoder.layer.*"
_MEGATRON = "decoder.layers.*"

TABLE = (
    Rename("roberta.embeddings.word_embeddings.weight", "embedding.word_embeddings.weight", ("vocab_size", "hidden_size")),
    SplitRows(
        "roberta.embeddings.position_embeddings.weight",
        "{kept.position_rows,embedding.position_embeddings.weight}",
        ("max_position_embeddings", "hidden_size"),
        num_kept_rows=2,
    ),
    Rename("roberta.embeddings.token_type_embeddings.weight", "embedding.end.token_types", ("num_token_types", "hidden_size")),
    Rename("roberta.embeddings.LayerNorm.{weight,bias}", "embedding.end.layer_norm.{weight,bias}", ("hidden_size",)),
    FuseQKV(
        f"{_HF}.attention.self.{{query,key,value}}.weight", f"{_MEGATRON}.self_attention.linear_qkv.weight", ("qkv_size", "hidden_size")
    ),
    FuseQKV(f"{_HF}.attention.self.{{query,key,value}}.bias", f"{_MEGATRON}.self_attention.linear_qkv.bias", ("qkv_size",)),
    Rename(f"{_HF}.attention.output.dense.weight", f"{_MEGATRON}.self_attention.linear_proj.weight", ("hidden_size", "attention_size")),
    Rename(f"{_HF}.attention.output.dense.bias", f"{_MEGATRON}.self_attention.linear_proj.bias", ("hidden_size",)),
    Rename(f"{_HF}.attention.output.LayerNorm.{{weight,bias}}", f"{_MEGATRON}.post_attention_layernorm.{{weight,bias}}", ("hidden_size",)),
    Rename(f"{_HF}.intermediate.dense.weight", f"{_MEGATRON}.mlp.linear_fc1.weight", ("ffn_hidden_size", "hidden_size")),
    Rename(f"{_HF}.intermediate.dense.bias", f"{_MEGATRON}.mlp.linear_fc1.bias", ("ffn_hidden_size",)),
    Rename(f"{_HF}.output.dense.weight", f"{_MEGATRON}.mlp.linear_fc2.weight", ("hidden_size", "ffn_hidden_size")),
    Rename(f"{_HF}.output.dense.bias", f"{_MEGATRON}.mlp.linear_fc2.bias", ("hidden_size",)),
    Rename(f"{_HF}.output.LayerNorm.{{weight,bias}}", f"{_MEGATRON}.post_mlp_layernorm.{{weight,bias}}", ("hidden_size",)),
    Rename("lm_head.dense.weight", "decoder.final_layernorm.dense.weight", ("hidden_size", "hidden_size")),
    Rename("lm_head.dense.bias", "decoder.final_layernorm.dense.bias", ("hidden_size",)),
    Rename("lm_head.layer_norm.{weight,bias}", "decoder.final_layernorm.layer_norm.{weight,bias}", ("hidden_size",)),
    Rename("lm_head.bias", "output_layer.bias", ("vocab_size",)),
    Duplicate("lm_head.decoder.bias", of="lm_head.bias"),
    Rename("lm_head.decoder.weight", "output_layer.weight", ("vocab_size", "hidden_size"), when="not share_embeddings_and_output_weights"),
    KeepAside("roberta.pooler.dense.weight", "kept.pooler.weight", ("hidden_size", "hidden_size")),
    KeepAside("roberta.pooler.dense.bias", "kept.pooler.bias", ("hidden_size",)),
    Drop("roberta.embeddings.position_ids", because="counted from the length of the table"),
)

REQUIREMENTS = (
    Require("position_embedding_type", "absolute", "models with relative positions are not covered"),
    Require("hidden_act", "gelu", "models with another activation are not covered"),
    Require("is_decoder", False, "it is used as a causal model, and such are not covered"),
    Require("add_cross_attention", False, "decoders that see an encoder are not covered"),
    Require(
        "pad_token_id", 1, "positions are counted from the padding token, and only those of published models (from row 2 on) are covered"
    ),
)

DEFAULTS = {
    "vocab_size": 50265,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}
XLM_DEFAULTS = {**DEFAULTS, "vocab_size": 30522}


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's configuration for a config.json."""
    return {
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "num_attention_heads": config["num_attention_heads"],
        "num_query_groups": config["num_attention_heads"],
        "max_position_embeddings": config["max_position_embeddings"] - 2,
        "vocab_size": config["vocab_size"],
        "num_token_types": config["type_vocab_size"],
        "init_method_std": config["initializer_range"],
        "layernorm_epsilon": config["layer_norm_eps"],
    }


def _family(model_type: str, defaults: Mapping[str, Any]) -> Family:
    return Family(
        model_type,
        TABLE,
        to_megatron,
        engine="nemo_patches.encoder_model:encoder_config",
        defaults=defaults,
        architecture={"activation_func": "gelu"},
        requirements=REQUIREMENTS,
        masked=True,
    )


ROBERTA, XLM_ROBERTA = _family("roberta", DEFAULTS), _family("xlm-roberta", XLM_DEFAULTS)
