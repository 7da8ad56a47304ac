"""GGUF files of tiny models, written by llama.cpp's own package as its conversion writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import PreTrainedModel

from conversion.checkpoints.hf_files import in_words_of_both

# Hugging Face's word in a tensor's name -> llama.cpp's.
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
    "mlp.gate.": "ffn_gate_inp.", "mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks.weight",
}  # fmt: skip
ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3", "olmo3": "olmo2", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}
ARCHITECTURES["ministral3"] = "mistral3"
ATTENTION_IS_FOLLOWED = ("gemma2", "gemma3_text", "olmo2", "olmo3", "gpt_oss")  # by a norm, which in others is the feed-forward part's
INTERLEAVED = ("llama", "mistral", "ministral3", "smollm3", "granite")
PLUS_ONE = ("gemma2", "gemma3_text")


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    kind: str = "F32",
    tokenizer: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    tensors_of_a_part: int = 0,
) -> None:
    """Write a model, of several parts where one may not have all tensors; `metadata` and `tokenizer` are keys behind the architecture's name and `tokenizer.ggml`."""
    config = model.config
    words = in_words_of_both(config.to_dict(), source="the model")
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, architecture, split_max_tensors=tensors_of_a_part)
    sizes = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": words["rope_theta"],
        "attention.key_length": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    }
    sizes |= _more_sizes(config, words)
    for key, value in {**sizes, **(metadata or {})}.items():
        _add(writer, f"{architecture}.{key}", value)
    for key, value in (tokenizer or {}).items():
        _add(writer, key if "." in key else f"tokenizer.ggml.{key}", value)
    if config.model_type == "apertus":
        for part in ("alpha_p", "alpha_n", "beta", "eps"):
            writer.add_array(f"xielu.{part}", [getattr(layer.mlp.act_fn, part).float().item() for layer in model.model.layers])
    for name, values in _as_llama_cpp(model):
        raw = kind if values.ndim > 1 else "F32"
        writer.add_tensor(name, quantize(values, GGMLQuantizationType[raw]), raw_dtype=GGMLQuantizationType[raw])
    if (words.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(model))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    add[type(value)](key, value)


def _more_sizes(config: Any, words: dict[str, Any]) -> dict[str, Any]:
    """What single architectures have."""
    sizes: dict[str, Any] = {}
    if config.model_type in ("gemma2", "mistral", "gemma3_text", "olmo3", "gpt_oss"):
        sizes["attention.sliding_window"] = config.sliding_window
    if config.model_type == "gemma2":
        sizes |= {key: getattr(config, key) for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    if config.model_type == "olmo3":
        sizes["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config.layer_types]
    if config.model_type == "granite":
        names = {"attention.scale": "attention", "embedding_scale": "embedding", "residual_scale": "residual"}
        sizes |= {key: getattr(config, f"{name}_multiplier") for key, name in names.items()} | {"logit_scale": config.logits_scaling}
    if config.model_type == "qwen3_moe":
        sizes |= {"expert_count": config.num_experts, "expert_feed_forward_length": config.moe_intermediate_size}
    if config.model_type == "gpt_oss":
        sizes |= {"expert_count": config.num_local_experts, "expert_feed_forward_length": config.intermediate_size}
    if config.model_type in ("qwen3_moe", "gpt_oss"):
        sizes["expert_used_count"] = config.num_experts_per_tok
    scaling = words.get("rope_scaling") or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        sizes |= {"rope.scaling.type": scaling["rope_type"], "rope.scaling.factor": scaling["factor"]}
    if scaling.get("rope_type") == "yarn":
        sizes["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
        sizes |= {f"rope.scaling.yarn_{key}": scaling[key] for key in ("beta_fast", "beta_slow")}
    if config.model_type == "ministral3":
        names = {"rope.scaling.yarn_log_multiplier": "mscale_all_dim", "attention.temperature_scale": "llama_4_scaling_beta"}
        sizes |= {key: scaling[name] for key, name in names.items()}
    return sizes


def _as_llama_cpp(model: PreTrainedModel) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """(name, values) of the file's tensors."""
    config, tensors = model.config, {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    for name, values in tensors.items():
        layer = ".".join(name.split(".")[:3]).replace("model.layers", "blk")
        if ".act_fn." in name or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        if ".experts.gate_up_proj" in name:
            suffix = "bias" if name.endswith("_bias") else "weight"
            rows = values if suffix == "bias" else values.swapaxes(1, 2)
            yield f"{layer}.ffn_gate_exps.{suffix}", np.ascontiguousarray(rows[:, 0::2])
            yield f"{layer}.ffn_up_exps.{suffix}", np.ascontiguousarray(rows[:, 1::2])
        elif name.endswith(".experts.down_proj_bias"):
            yield f"{layer}.ffn_down_exps.bias", values
        elif name.endswith(".experts.down_proj"):
            yield f"{layer}.ffn_down_exps.weight", np.ascontiguousarray(values.swapaxes(1, 2))
        elif ".experts." in name:
            if ".experts.0." in name:
                part = name.split(".")[-2].removesuffix("_proj")
                experts = [tensors[name.replace(".experts.0.", f".experts.{expert}.")] for expert in range(config.num_experts)]
                yield f"{layer}.ffn_{part}_exps.weight", np.stack(experts)
        else:
            yield _name(name, config.model_type), _values(name, values, config)


def _name(name: str, model_type: str) -> str:
    after_attention = "post_attention_norm" if model_type in ATTENTION_IS_FOLLOWED else "ffn_norm"
    for hf, gguf in {"post_attention_layernorm": after_attention, **NAMES}.items():
        name = name.replace(hf, gguf)
    return name


def _values(name: str, values: np.ndarray[Any, Any], config: Any) -> np.ndarray[Any, Any]:
    if config.model_type in PLUS_ONE and "norm" in name:
        return values + 1
    if config.model_type in INTERLEAVED and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = values.reshape(heads, 2, -1, values.shape[-1])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
    return values


def llama3_factors(model: PreTrainedModel) -> np.ndarray[Any, Any]:
    """How many times slower transformers rotates each pair of dimensions than without scaling."""
    rotary = model.model.rotary_emb
    dim = 2 * len(rotary.inv_freq)
    base = in_words_of_both(model.config.to_dict(), source="the model")["rope_theta"]
    plain = 1 / base ** (np.arange(0, dim, 2) / dim)
    return (plain / rotary.inv_freq.numpy()).astype(np.float32)
