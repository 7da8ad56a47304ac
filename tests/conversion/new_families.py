"""Families that the engine does not have: what their config.json says, and tensors of theirs by the names of transformers 5's classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
SIZES |= {"max_position_embeddings": 64}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4, "image_size": 8}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
PER_LAYER = {"hidden_size_per_layer_input": 4, "global_head_dim": 8, "sliding_window": 8, "tie_word_embeddings": True}
ROWS = ("vocab_size", "vocab_size_per_layer_input")
HEAD, TABLE, PER_LAYER_TABLE = "lm_head.weight", "model.embed_tokens.weight", "model.embed_tokens_per_layer.weight"
INNER = TABLE.replace("model.", "model.language_model.")
INNER_PER_LAYER = PER_LAYER_TABLE.replace("model.", "model.language_model.")


class New(NamedTuple):
    """A family.

    Attributes:
        config: what config.json says beside the number of rows, which the language model's part says by the names of `rows`.
        tokens: tensors with a row per token, and their widths.
        others: some of the others, and their shapes.
    """

    model_type: str
    config: dict[str, Any]
    tokens: dict[str, int]
    others: dict[str, tuple[int, ...]]
    rows: tuple[str, ...] = ROWS[:1]


UNTIED = {TABLE: 32, HEAD: 32}
NEW = {
    "qwen3_5": New(
        "qwen3_5",
        {"text_config": {"model_type": "qwen3_5_text", **SIZES, **LINEAR}, "image_token_id": 7, "video_token_id": 8}
        | {"vision_start_token_id": 9, "vision_end_token_id": 10}
        | {
            "vision_config": {
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 24,
                "num_heads": 2,
                "patch_size": 4,
                "out_hidden_size": 32,
            }
            | {"num_position_embeddings": 16, "deepstack_visual_indexes": []}
        },
        {INNER: 32, HEAD: 32},
        {
            "model.language_model.layers.0.linear_attn.in_proj_qkv.weight": (48, 32),
            "model.language_model.layers.0.linear_attn.A_log": (2,),
            "model.language_model.layers.3.self_attn.q_proj.weight": (64, 32),
            "model.visual.pos_embed.weight": (16, 16),
        },
    ),
    "qwen3_5_text": New(
        "qwen3_5_text",
        {**SIZES, **LINEAR},
        UNTIED,
        {"model.layers.0.linear_attn.in_proj_a.weight": (2, 32), "model.norm.weight": (32,)},
    ),
    "gemma4": New(
        "gemma4",
        {"text_config": {"model_type": "gemma4_text", **SIZES, **PER_LAYER}, "audio_config": None, "image_token_id": 7, "boi_token_id": 8}
        | {"eoi_token_id": 9, "tie_word_embeddings": True}
        | {"vision_config": VISION | {"head_dim": 8, "num_key_value_heads": 2, "global_head_dim": 8}},
        {INNER: 32, INNER_PER_LAYER: 16},
        {
            "model.language_model.layers.0.per_layer_input_gate.weight": (4, 32),
            "model.language_model.layers.0.layer_scalar": (1,),
            "model.embed_vision.embedding_projection.weight": (32, 16),
            "model.vision_tower.patch_embedder.input_proj.weight": (16, 48),
        },
        ROWS,
    ),
    "gemma4_text": New(
        "gemma4_text",
        {**SIZES, **PER_LAYER},
        {TABLE: 32, PER_LAYER_TABLE: 16},
        {"model.layers.0.per_layer_projection.weight": (32, 4), "model.per_layer_model_projection.weight": (16, 32)},
        ROWS,
    ),
    "llava": New(
        "llava",
        {"text_config": {"model_type": "mistral", **SIZES, "tie_word_embeddings": True}, "image_token_index": 7}
        | {"tie_word_embeddings": True, "vision_config": {"model_type": "pixtral", **VISION}},
        {"language_model.model.embed_tokens.weight": 32},
        {
            "language_model.model.layers.0.self_attn.q_proj.weight": (32, 32),
            "vision_tower.transformer.layers.0.attention.q_proj.weight": (16, 16),
            "multi_modal_projector.linear_1.weight": (32, 16),
        },
    ),
    "granite4": New(
        "granitemoehybrid",
        {**SIZES, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "shared_intermediate_size": 24}
        | {"num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["mamba", "mamba", "attention", "mamba"]},
        UNTIED,
        {"model.layers.0.mamba.in_proj.weight": (148, 32), "model.layers.0.block_sparse_moe.router.layer.weight": (2, 32)},
    ),
    "olmo_hybrid": New(
        "olmo_hybrid",
        {**SIZES, **LINEAR, "pad_token_id": 1, "eos_token_id": 2},
        UNTIED,
        {"model.layers.0.linear_attn.q_conv1d.weight": (16, 1, 4), "model.layers.0.attention_layer_norm.weight": (32,)},
    ),
    "mixtral": New(
        "mixtral",
        {**SIZES, "num_local_experts": 4},
        UNTIED,
        {"model.layers.0.block_sparse_moe.experts.3.w1.weight": (48, 32), "model.layers.0.block_sparse_moe.gate.weight": (4, 32)},
    ),
    "nemotron_h": New(  # whose embeddings no table names
        "nemotron_h",
        {**SIZES, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1},
        {"backbone.embedding.weight": 32, HEAD: 32},
        {"backbone.layers.0.mixer.in_proj.weight": (148, 32), "backbone.norm_f.weight": (32,)},
    ),
}


def config_of(name: str, rows: int) -> dict[str, Any]:
    """config.json of a family with so many rows per token."""
    config = json.loads(json.dumps(NEW[name].config))
    config.get("text_config", config).update(dict.fromkeys(NEW[name].rows, rows))
    return {"model_type": NEW[name].model_type, **config}


def save_plain(name: str, directory: Path, tokenizer: PreTrainedTokenizerFast, *, padding: int = 3, seed: int = 0) -> Path:
    """Such a folder, with some of the tensors of its family; no class is needed for it."""
    rows = len(tokenizer) + padding
    generator = torch.Generator().manual_seed(seed)
    shapes = {key: (rows, width) for key, width in NEW[name].tokens.items()} | NEW[name].others
    tokenizer.save_pretrained(str(directory))
    (directory / "config.json").write_text(json.dumps(config_of(name, rows)))
    tensors = {key: torch.randn(shape, generator=generator).bfloat16() for key, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
