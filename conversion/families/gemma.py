"""Gemma 1 (Mesnard et al. 2024): Llama with gated GELU, scaled embeddings, and norms whose weights count from 1."""

from __future__ import annotations

from conversion.families import llama
from conversion.families.family import Family, Require

# The published files say "gelu", for which transformers 4 computes the exact one; the models were trained with the approximation by tanh.
APPROXIMATE_GELU = Require(
    "hidden_act",
    "gelu_pytorch_tanh",
    "models with another activation are not supported; Gemma was trained with this one, whatever its first files say: set it there",
)

GEMMA = Family(
    "gemma",
    llama.TABLE,
    llama.to_megatron,
    defaults={
        **llama.DEFAULTS,
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
    },
    architecture={**llama.ARCHITECTURE, "activation_func": "gelu_tanh", "layernorm_zero_centered_gamma": True, "scale_embeddings": True},
    requirements=(
        APPROXIMATE_GELU,
        llama.ALL_DIMENSIONS_ROTATE,
        Require("attention_bias", False, "models with biases in the attention are not supported"),
        Require("use_bidirectional_attention", None, "models with bidirectional attention are not supported", also=(False,)),
    ),
)
