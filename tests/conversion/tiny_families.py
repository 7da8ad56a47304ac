"""A tiny random model of each family, made by transformers, shaped so that what could go wrong would show.

Grouped heads whose size is not hidden / heads, windows shorter than the sequences, caps that bind, odd vocabularies that
no tensor parallel size divides, four layers so that pipeline stages hold some of each kind.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from conversion.checkpoints.hf_files import add_missing_class
from conversion.families import FAMILIES

add_missing_class("ministral3")

SEQUENCE_LENGTH = 40
ITERATION, SAMPLES, TRAINED_LENGTH = 30, 480, 64  # of a checkpoint as Megatron-LM would leave it
EXPERT_BALANCE = 0.5  # weight of the loss that keeps experts equally busy, large enough to be seen
PADDING = 9.0  # of the rows behind the vocabulary, which must not come back


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

# Layers with and without a window whose rotations are told apart within 40 tokens.
GEMMA3 = {
    "head_dim": 12,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 10,
    "rope_theta": 1000.0,
    "rope_local_base_freq": 50.0,
    "rope_scaling": {"rope_type": "linear", "factor": 3.0},
    "tie_word_embeddings": True,
}

CASES = {
    "opt": Case("opt", {"vocab_size": 301, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "llama2": Case("llama", {"vocab_size": 283, "num_key_value_heads": 8}),
    "llama3": Case("llama", {"vocab_size": 385, "head_dim": 12, "rope_theta": 5000.0, "rope_scaling": LLAMA3_ROPE}),
    "mistral": Case("mistral", {"vocab_size": 301, "sliding_window": 8}),
    "gemma": Case("gemma", {"vocab_size": 303, "head_dim": 12, "tie_word_embeddings": True}),
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
    "bert": Case("bert", {"vocab_size": 315, "type_vocab_size": 2, "tie_word_embeddings": True}),
    "roberta": Case("roberta", {"vocab_size": 311, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "tie_word_embeddings": True}),
    "xlm_roberta": Case("xlm-roberta", {"vocab_size": 313, "type_vocab_size": 2, "tie_word_embeddings": True}),
}
# Some rotations stay as they are, some are slowed down by 4, one lies between; queries and keys are multiplied by 1.14.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.5}
CASES["yarn"] = Case("qwen2", {"vocab_size": 305, "head_dim": 16, "rope_theta": 100.0, "rope_scaling": YARN})
CASES["llama_bias"] = Case("llama", {"vocab_size": 289, "head_dim": 12, "attention_bias": True})
CASES["llama_biases"] = Case("llama", {"vocab_size": 289, "attention_bias": True, "mlp_bias": True})
CASES["qwen2_windows"] = Case("qwen2", {"vocab_size": 305, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1})
# The third of four layers rotates not, other than the library's own interval would say; the others rotate at a third of the speed.
CASES["smollm3"] = Case(
    "smollm3",
    {"vocab_size": 315, "rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0}, "no_rope_layers": [1, 1, 0, 1]}
    | {"tie_word_embeddings": True, "pad_token_id": 1},
)
CASES["olmo2"] = Case("olmo2", {"vocab_size": 317, "head_dim": 12})
# Layers with and without a window whose rotations are told apart within 40 tokens.
CASES["olmo3"] = Case(
    "olmo3",
    {"vocab_size": 319, "head_dim": 16, "rope_theta": 100.0, "rope_scaling": YARN, "sliding_window": 8}
    | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]},
)
CASES["apertus"] = Case("apertus", {"vocab_size": 321, "head_dim": 12, "rope_theta": 500.0, "rope_scaling": LLAMA3_ROPE, "pad_token_id": 1})
CASES["granite"] = Case(
    "granite",
    {"vocab_size": 323, "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.6, "logits_scaling": 1.7}
    | {"tie_word_embeddings": True},
)
CASES["phi3"] = Case("phi3", {"vocab_size": 329, "head_dim": 12, "sliding_window": 8, "pad_token_id": 1})
# Half of each head rotates, as three quarters do in the smallest Phi-4.
CASES["phi3_part"] = Case("phi3", {"vocab_size": 331, "head_dim": 16, "partial_rotary_factor": 0.5, "rope_theta": 50.0, "pad_token_id": 1})
# Beyond 16 positions other factors, as in all of the 40; three quarters of each head are taken times 1.2 beside the rest.
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 2.0, 3.0]}
CASES["phi3_long"] = Case(
    "phi3",
    {"vocab_size": 333, "num_attention_heads": 4, "partial_rotary_factor": 0.75, "rope_theta": 50.0, "rope_scaling": LONGROPE}
    | {"original_max_position_embeddings": 16, "pad_token_id": 1},
)
CASES["qwen3_moe"] = Case(
    "qwen3_moe",
    {"vocab_size": 325, "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": True}
    | {"mlp_only_layers": []},
)
# Sinks that take a good part of what little a window leaves, gates that reach the clamp.
CASES["gpt_oss"] = Case(
    "gpt_oss",
    {"vocab_size": 327, "head_dim": 12, "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 8, "rope_theta": 100.0}
    | {"rope_scaling": {**YARN, "truncate": False}},
)
# The attention's temperature changes twice within 40 tokens.
MINISTRAL3 = {
    "head_dim": 12,
    "pad_token_id": 1,
    "rope_theta": 100.0,
    "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.7},
}
CASES["ministral3"] = Case("ministral3", {"vocab_size": 335, **MINISTRAL3})
CASES["mistral3"] = Case(
    "mistral3",
    {
        "text_config": {"model_type": "ministral3", "vocab_size": 337, **SIZES, **MINISTRAL3, "tie_word_embeddings": True},
        "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"image_size": 28, "patch_size": 14},
        "image_token_index": 336,
    },
)
CASES["gemma3_text"] = Case("gemma3_text", {"vocab_size": 309, **GEMMA3})
# Beside a vision tower, whose tensors the engine never sees; five layers with a window, so that the pattern is not one of two.
CASES["gemma3"] = Case(
    "gemma3",
    {
        "text_config": {
            **SIZES,
            "vocab_size": 311,
            **GEMMA3,
            "sliding_window_pattern": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
        "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"image_size": 28, "patch_size": 14},
        "mm_tokens_per_image": 4,
        "boi_token_index": 4,
        "eoi_token_index": 5,
        "image_token_index": 310,
    },
)


_ROWS = [json.loads(line) for line in Path(__file__).with_name("published_models.jsonl").read_text(encoding="utf-8").splitlines()]
_IDS = {
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "ministral-3-3b": "mistralai/Ministral-3-3B-Base-2512",
    "ministral-3-8b": "mistralai/Ministral-3-8B-Base-2512",
    "gemma-2-9b": "google/gemma-2-9b",
    "gemma-3-1b": "google/gemma-3-1b-pt",
    "gemma-3-12b": "google/gemma-3-12b-it",
    "qwen2-7b": "Qwen/Qwen2.5-7B",
    "eurollm-1.7b": "utter-project/EuroLLM-1.7B",
    "smollm3-3b": "HuggingFaceTB/SmolLM3-3B",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B",
    "olmo-3-7b": "allenai/Olmo-3-1025-7B",
    "apertus-8b": "swiss-ai/Apertus-8B-2509",
    "granite-3.3-2b": "ibm-granite/granite-3.3-2b-base",
    "phi-4": "microsoft/phi-4",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "gpt-oss-20b": "unsloth/gpt-oss-20b-BF16",
    "qwen3-8b": "Qwen/Qwen3-8B",
}
PUBLISHED: dict[str, dict[str, Any]] = {name: next(row["config"] for row in _ROWS if row["id"] == id_) for name, id_ in _IDS.items()}


def tiny_model(name: str, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model of a case whose every tensor, biases and norms included, is far from zero and one."""
    model_type, config = copy.deepcopy(CASES[name])  # transformers 5 writes into what it is given
    torch.manual_seed(seed)
    library = AutoModelForMaskedLM if FAMILIES[model_type].masked else AutoModelForCausalLM
    sizes = {**SIZES, **config, **changes}
    if "text_config" in config:
        sizes = {**config, "text_config": {**config["text_config"], **changes}}
    model = library.from_config(AutoConfig.for_model(model_type, **sizes)).eval()
    for parameter in model.parameters():
        parameter.data.normal_(mean=0.1, std=0.3)
    return model.float()  # transformers makes some numbers of Apertus in bfloat16, and reads them so


def save_tiny_model(name: str, directory: Path, *, tokenizer_dir: Path | None = None, **changes: Any) -> Path:
    """Save a model as the transformers library does, with a tokenizer if one is given."""
    tiny_model(name, **changes).save_pretrained(directory)
    if tokenizer_dir is not None:
        shutil.copytree(tokenizer_dir, directory, dirs_exist_ok=True)
    return directory


def save_real_sized_model(directory: Path) -> Path:
    """A Llama whose logits reach 36 and whose rounding moves them by more than 1e-4, as those of real models: twelve sharp layers."""
    model = tiny_model("llama2", num_hidden_layers=12, num_key_value_heads=4)
    for parameter in model.parameters():
        parameter.data.normal_(mean=0.0 if parameter.dim() == 2 else 1.0, std=0.3)
    model.get_output_embeddings().weight.data.mul_(4.1)
    model.save_pretrained(directory)
    return directory


def with_gradients(family: str) -> bool:
    """Whether a family's gradients are compared: it predicts the next token."""
    return not FAMILIES[family].masked


def has_experts(family: str) -> bool:
    """Whether its layers have experts."""
    return family in ("qwen3_moe", "gpt_oss")
