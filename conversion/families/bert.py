"""BERT (Devlin et al. 2019): an encoder with post-LayerNorm, exact GELU, biases and learned positions; and the rows that later encoders share.

Published files, which are older than the library's names, call weight and bias of a norm `gamma` and `beta`, and hold a pooling layer and
a classifier of following sentences, which no masked model has: both are kept aside for the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conversion.families.family import Family, Require
from conversion.families.mapping import Beside, Drop, Duplicate, FuseQKV, KeepAside, Mark, Rename, Rule

_MEGATRON = "decoder.layers.*"


def body(prefix: str) -> tuple[Rule, ...]:
    """The rows of tables, positions apart, and layers, whose names begin with `prefix`."""
    hf = f"{prefix}.encoder.layer.*"
    return (
        Rename(f"{prefix}.embeddings.word_embeddings.weight", "embedding.word_embeddings.weight", ("vocab_size", "hidden_size")),
        Rename(f"{prefix}.embeddings.token_type_embeddings.weight", "embedding.end.token_types", ("num_token_types", "hidden_size")),
        Rename(f"{prefix}.embeddings.LayerNorm.{{weight,bias}}", "embedding.end.layer_norm.{weight,bias}", ("hidden_size",)),
        FuseQKV(
            f"{hf}.attention.self.{{query,key,value}}.weight", f"{_MEGATRON}.self_attention.linear_qkv.weight", ("qkv_size", "hidden_size")
        ),
        FuseQKV(f"{hf}.attention.self.{{query,key,value}}.bias", f"{_MEGATRON}.self_attention.linear_qkv.bias", ("qkv_size",)),
        Rename(f"{hf}.attention.output.dense.weight", f"{_MEGATRON}.self_attention.linear_proj.weight", ("hidden_size", "attention_size")),
        Rename(f"{hf}.attention.output.dense.bias", f"{_MEGATRON}.self_attention.linear_proj.bias", ("hidden_size",)),
        Rename(
            f"{hf}.attention.output.LayerNorm.{{weight,bias}}", f"{_MEGATRON}.post_attention_layernorm.{{weight,bias}}", ("hidden_size",)
        ),
        Rename(f"{hf}.intermediate.dense.weight", f"{_MEGATRON}.mlp.linear_fc1.weight", ("ffn_hidden_size", "hidden_size")),
        Rename(f"{hf}.intermediate.dense.bias", f"{_MEGATRON}.mlp.linear_fc1.bias", ("ffn_hidden_size",)),
        Rename(f"{hf}.output.dense.weight", f"{_MEGATRON}.mlp.linear_fc2.weight", ("hidden_size", "ffn_hidden_size")),
        Rename(f"{hf}.output.dense.bias", f"{_MEGATRON}.mlp.linear_fc2.bias", ("hidden_size",)),
        Rename(f"{hf}.output.LayerNorm.{{weight,bias}}", f"{_MEGATRON}.post_mlp_layernorm.{{weight,bias}}", ("hidden_size",)),
        KeepAside(f"{prefix}.pooler.dense.weight", "kept.pooler.weight", ("hidden_size", "hidden_size")),
        KeepAside(f"{prefix}.pooler.dense.bias", "kept.pooler.bias", ("hidden_size",)),
        Drop(f"{prefix}.embeddings.position_ids", because="counted from the length of the table"),
    )


def head(prefix: str, *, transform: str, norm: str) -> tuple[Rule, ...]:
    """The rows of what predicts masked tokens: a dense layer and a norm, the table of tokens again and a bias for each.

    Args:
        transform, norm: where the dense layer and the norm stand, below `prefix`.
    """
    return (
        Rename(f"{prefix}.{transform}.weight", "decoder.final_layernorm.dense.weight", ("hidden_size", "hidden_size")),
        Rename(f"{prefix}.{transform}.bias", "decoder.final_layernorm.dense.bias", ("hidden_size",)),
        Rename(f"{prefix}.{norm}.{{weight,bias}}", "decoder.final_layernorm.layer_norm.{weight,bias}", ("hidden_size",)),
        Rename(f"{prefix}.bias", "output_layer.bias", ("vocab_size",)),
        Duplicate(f"{prefix}.decoder.bias", of=f"{prefix}.bias"),
        Rename(
            f"{prefix}.decoder.weight", "output_layer.weight", ("vocab_size", "hidden_size"), when="not share_embeddings_and_output_weights"
        ),
    )


TABLE = (
    *body("bert"),
    Rename(
        "bert.embeddings.position_embeddings.weight", "embedding.position_embeddings.weight", ("max_position_embeddings", "hidden_size")
    ),
    *head("cls.predictions", transform="transform.dense", norm="transform.LayerNorm"),
    Beside("cls.seq_relationship."),
)


def with_old_norm_names(table: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The same rules for files in which weight and bias of a norm are its gamma and beta."""
    renamed = (replace(rule, hf=rule.hf.replace("LayerNorm.{weight,bias}", "LayerNorm.{gamma,beta}")) for rule in table)
    return (*renamed, Mark(megatron="kept.old_norm_names"))


REQUIREMENTS = (
    Require("position_embedding_type", "absolute", "models with relative positions are not supported"),
    Require("hidden_act", "gelu", "models with another activation are not supported"),
    Require("is_decoder", False, "it is used as a causal model, and such are not supported"),
    Require("add_cross_attention", False, "decoders with cross-attention are not supported"),
)

DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
}


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's configuration for a config.json."""
    return {
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "num_attention_heads": config["num_attention_heads"],
        "num_query_groups": config["num_attention_heads"],
        "max_position_embeddings": config["max_position_embeddings"],
        "vocab_size": config["vocab_size"],
        "num_token_types": config["type_vocab_size"],
        "init_method_std": config["initializer_range"],
        "layernorm_epsilon": config["layer_norm_eps"],
    }


ENGINE = "nemo_patches.encoder_model:encoder_config"
ARCHITECTURE = {"activation_func": "gelu"}

BERT = Family(
    "bert",
    TABLE,
    to_megatron,
    engine=ENGINE,
    defaults=DEFAULTS,
    architecture=ARCHITECTURE,
    requirements=REQUIREMENTS,
    masked=True,
    other_tables=(with_old_norm_names(TABLE),),
)
