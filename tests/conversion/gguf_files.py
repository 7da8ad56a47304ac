"""GGUF files of tiny models, written by llama.cpp's own package as its conversion writes them."""

from __future__ import annotations

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
}  # fmt: skip


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    kind: str = "F32",
    tokenizer: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write a model; `metadata` and `tokenizer` are keys behind the architecture's name and `tokenizer.ggml`."""
    config = model.config
    words = in_words_of_both(config.to_dict(), source="the model")
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = GGUFWriter(path, architecture)
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
    if config.model_type in ("gemma2", "mistral"):
        sizes["attention.sliding_window"] = config.sliding_window
    if config.model_type == "gemma2":
        sizes |= {key: getattr(config, key) for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    for key, value in {**sizes, **(metadata or {})}.items():
        _add(writer, f"{architecture}.{key}", value)
    for key, value in (tokenizer or {}).items():
        _add(writer, key if "." in key else f"tokenizer.ggml.{key}", value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = _as_llama_cpp(name, tensor.float().numpy(), config)
        raw = kind if values.ndim > 1 else "F32"
        writer.add_tensor(_name(name, config.model_type), quantize(values, GGMLQuantizationType[raw]), raw_dtype=GGMLQuantizationType[raw])
    if words.get("rope_scaling"):
        writer.add_tensor("rope_freqs.weight", llama3_factors(model))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    add[type(value)](key, value)


def _name(name: str, model_type: str) -> str:
    after_attention = "post_attention_norm" if model_type == "gemma2" else "ffn_norm"
    for hf, gguf in {**NAMES, "post_attention_layernorm": after_attention}.items():
        name = name.replace(hf, gguf)
    return name


def _as_llama_cpp(name: str, values: np.ndarray[Any, Any], config: Any) -> np.ndarray[Any, Any]:
    if config.model_type == "gemma2" and "norm" in name:
        return values + 1
    if config.model_type in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
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
