"""A tiny random model of each family, made by transformers, shaped so that what could go wrong would show.

Grouped heads whose size is not hidden / heads, windows shorter than the sequences, caps that bind, odd vocabularies that
no tensor parallel size divides, four layers so that pipeline stages hold some of each kind.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SEQUENCE_LENGTH = 40


class Case(NamedTuple):
    """A model type with the values of config.json that differ from `SIZES`."""

    model_type: str
    config: dict[str, Any]


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
# Other numbers than Megatron-core's own 1, 4 and 8192, with frequencies in all three ranges.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 2.0,
    "high_freq_factor": 5.0,
    "original_max_position_embeddings": 16,
}

CASES = {
    "opt": Case("opt", {"vocab_size": 301, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "llama2": Case("llama", {"vocab_size": 283, "num_key_value_heads": 8}),
    "llama3": Case("llama", {"vocab_size": 385, "head_dim": 12, "rope_theta": 5000.0, "rope_scaling": LLAMA3_ROPE}),
    "mistral": Case("mistral", {"vocab_size": 301, "sliding_window": 8}),
    "gemma2": Case(
        "gemma2",
        {
            "vocab_size": 303,
            "head_dim": 12,
            "sliding_window": 8,
            "query_pre_attn_scalar": 10,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2": Case("qwen2", {"vocab_size": 305, "tie_word_embeddings": True}),
    "qwen3": Case("qwen3", {"vocab_size": 307, "head_dim": 12}),
}


def tiny_model(name: str, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model of a case whose every tensor, biases and norms included, is far from zero and one."""
    model_type, config = CASES[name]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**SIZES, **config, **changes})).eval()
    for parameter in model.parameters():
        parameter.data.normal_(mean=0.1, std=0.3)
    return model


def save_tiny_model(name: str, directory: Path, *, tokenizer_dir: Path | None = None, **changes: Any) -> Path:
    """Save a model as the transformers library does, with a tokenizer if one is given."""
    tiny_model(name, **changes).save_pretrained(directory)
    if tokenizer_dir is not None:
        shutil.copytree(tokenizer_dir, directory, dirs_exist_ok=True)
    return directory
