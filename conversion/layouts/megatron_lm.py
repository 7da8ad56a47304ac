"""The arguments that Megatron-LM stores beside the weights."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

CHECKPOINT_VERSION = 3.0  # since QKV rows are interleaved by query group
_SAME = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "max_position_embeddings",
    "init_method_std",
    "rotary_base",
    "no_rope_freq",
    "qk_layernorm",
    "add_qkv_bias",
    "vocab_size",
    "kv_channels",
)

_NOT_AN_OPTION = (
    "window_size",
    "post_norms",
    "norms_of_all_heads",
    "add_proj_bias",
    "scale_embeddings",
    "attn_logit_softcapping",
    "rotary_base_local",
    "yarn_factor",
    "longrope_positions",
    "query_temperature_beta",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "num_moe_experts",
)


def arguments(config: Mapping[str, Any], *, num_rows: int, dtype: str, tokenizer: str | None, step: int, samples: int) -> Namespace:
    """The arguments of a run that had trained this model on one device and saved its weights alone.

    Args:
        config: `config` of `context/model.json`.
        num_rows: of the vocabulary table, padding included.
        dtype: of the weights.
        tokenizer: folder of the Hugging Face tokenizer.
    """
    import torch

    values = {key: config[key] for key in _SAME if key in config}
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    gated_silu = bool(config.get("gated_linear_unit")) and config.get("activation_func") == "silu"
    return Namespace(
        **{
            "kv_channels": head_dim,
            "qk_layernorm": False,
            "add_qkv_bias": False,
            "rotary_base": 10000,
            **values,
            "seq_length": config["max_position_embeddings"],
            "padded_vocab_size": num_rows,
            "make_vocab_size_divisible_by": 1,
            "group_query_attention": config["num_query_groups"] != config["num_attention_heads"],
            "untie_embeddings_and_output_weights": not config["share_embeddings_and_output_weights"],
            "normalization": config.get("normalization", "LayerNorm"),
            "norm_epsilon": config["layernorm_epsilon"],
            "apply_layernorm_1p": bool(config.get("layernorm_zero_centered_gamma", False)),
            "add_bias_linear": config.get("add_bias_linear", True),
            "disable_bias_linear": not config.get("add_bias_linear", True),
            "swiglu": gated_silu,
            "squared_relu": False,
            "bias_swiglu_fusion": gated_silu,
            "bias_gelu_fusion": False,
            "position_embedding_type": config.get("position_embedding_type", "learned_absolute"),
            "add_position_embedding": config.get("position_embedding_type", "learned_absolute") == "learned_absolute",
            "use_rotary_position_embeddings": config.get("position_embedding_type") == "rope",
            "rotary_percent": config.get("rotary_percent", 1.0),
            "rotary_seq_len_interpolation_factor": config.get("seq_len_interpolation_factor"),
            "rotary_interleaved": False,
            "use_rope_scaling": "scale_factor" in config,
            "rope_scaling_factor": config.get("scale_factor", 1.0),
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "bf16": dtype == "bfloat16",
            "fp16": dtype == "float16",
            "params_dtype": getattr(torch, dtype),
            "tokenizer_type": "HuggingFaceTokenizer" if tokenizer else "NullTokenizer",
            "tokenizer_model": tokenizer,
            "iteration": step,
            "consumed_train_samples": samples,
            "consumed_valid_samples": 0,
            "skipped_train_samples": 0,
            "tensor_model_parallel_size": 1,
            "pipeline_model_parallel_size": 1,
            "context_parallel_size": 1,
            "expert_model_parallel_size": 1,
            "world_size": 1,
            "data_parallel_size": 1,
            "ckpt_format": "torch_dist",
            "use_dist_ckpt": True,
            "no_save_optim": True,
            "no_save_rng": True,
            # What Megatron-Bridge asks for when it reads these arguments.
            "multi_latent_attention": False,
            "heterogeneous_layers_config_path": None,
            "no_persist_layer_norm": True,
            "overlap_p2p_comm": False,
            "num_experts": None,
            "decoder_first_pipeline_num_layers": None,
            "decoder_last_pipeline_num_layers": None,
            "fp8_param_gather": False,
            "init_method_xavier_uniform": False,
            "config_logger_dir": "",
            "cp_comm_type": ["p2p"],
            "is_hybrid_model": False,
        }
    )


def not_expressible(config: Mapping[str, Any]) -> list[str]:
    """What the model needs and Megatron-LM's options do not have; its weights are right, but its own model would be another one."""
    missing = []
    activation = config.get("activation_func")
    if activation != "silu" or not config.get("gated_linear_unit"):
        missing.append(f"activation {activation or 'relu'}")
    missing += [key for key in _NOT_AN_OPTION if config.get(key)]
    return missing
