"""The published models that the papers start from: what their config.json says of their shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.families import family_of

_LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096, "rms_norm_eps": 1e-5}
_GEMMA3 = {
    "model_type": "gemma3_text",
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "sliding_window_pattern": 6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_GEMMA3_LONG = {
    **_GEMMA3,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window": 1024,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}

_ENCODER = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "tie_word_embeddings": True,
}

BASE_MODELS: Mapping[str, Mapping[str, Any]] = {
    "opt-1.3b": {
        "model_type": "opt",
        "vocab_size": 50_272,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "opt-125m": {
        "model_type": "opt",
        "vocab_size": 50_272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "roberta-base": {**_ENCODER, "model_type": "roberta", "vocab_size": 50_265},
    "xlm-roberta-base": {**_ENCODER, "model_type": "xlm-roberta", "vocab_size": 250_002},
    "llama-2-7b": {**_LLAMA, "vocab_size": 32_000, "intermediate_size": 11_008, "max_position_embeddings": 4096},
    "llama-3-8b": {
        **_LLAMA,
        "vocab_size": 128_256,
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rope_theta": 500_000.0,
    },
    "llama-3.1-8b": {
        **_LLAMA,
        "vocab_size": 128_256,
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
    },
    "mistral-7b-v0.1": {
        **_LLAMA,
        "model_type": "mistral",
        "vocab_size": 32_000,
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32_768,
        "sliding_window": 4096,
    },
    # The text_config of the published files, with what they leave to transformers (google/gemma-3-1b-pt, -4b-pt, -12b-pt, -27b-pt); of the larger
    # three the recipes train the language model alone, whose vision tower is no matter for a plan.
    "gemma-3-1b": {
        **_GEMMA3,
        "vocab_size": 262_144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32_768,
        "sliding_window": 512,
    },
    "gemma-3-4b": {
        **_GEMMA3_LONG,
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
    "gemma-3-12b": {
        **_GEMMA3_LONG,
        "hidden_size": 3840,
        "intermediate_size": 15_360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    },
    "gemma-3-27b": {
        **_GEMMA3_LONG,
        "hidden_size": 5376,
        "intermediate_size": 21_504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "query_pre_attn_scalar": 168,
    },
    "gemma-2-9b": {
        "model_type": "gemma2",
        "vocab_size": 256_000,
        "hidden_size": 3584,
        "intermediate_size": 14_336,
        "num_hidden_layers": 42,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
}

# What makes an architecture; rotary constants and the like come with the checkpoint.
SHAPE_KEYS = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels")


def base_model(name: str, *, vocab_size: int | None = None, tied: bool | None = None) -> tuple[str, dict[str, Any]]:
    """Family and Megatron's configuration of a published model.

    Args:
        vocab_size, tied: of a model made from it; by default its own.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in BASE_MODELS:
        raise ValueError(f"model.base is {name!r}; expected one of {', '.join(BASE_MODELS)}")
    published = dict(BASE_MODELS[name])
    published["vocab_size"] = vocab_size or published["vocab_size"]
    tied = bool(published.get("tie_word_embeddings", False)) if tied is None else tied
    family = family_of(published["model_type"], source=name)
    return family.model_type, family.megatron_config({**published, "tie_word_embeddings": tied}, tied=tied, source=name)
