"""What llama.cpp's names mean in Hugging Face's words: one table per architecture, as for model families.

llama.cpp has no architecture for OPT; Mistral's models are its `llama`, and Mistral here where the file has a window.  Facts: gguf-py's
`constants.py` and `tensor_mapping.py`, and what the conversion of each architecture does to a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

Values = np.ndarray[Any, Any]


class Change(Enum):
    """What llama.cpp's conversion did to the values, to be undone."""

    NONE = "none"
    QUERY = "the two halves of each query head are interleaved, for its form of rotary positions"
    KEY = "the same for key heads"
    PLUS_ONE = "one was added, since Gemma's norms scale by 1 + weight"


@dataclass(frozen=True)
class Row:
    """A tensor under both names; `*` stands for each layer number."""

    gguf: str
    hf: str
    change: Change = Change.NONE


@dataclass(frozen=True)
class Architecture:
    """One architecture of llama.cpp.

    Attributes:
        model_type: of config.json.
        hf_class: of the causal language model, for `architectures`.
        rows: its tensors.
        dropped: tensors that are computed from the configuration.
        config: key of config.json -> key of the metadata behind the architecture's name, where the file has it.
        fixed: what is so in all models of the architecture.
    """

    model_type: str
    hf_class: str
    rows: Sequence[Row]
    config: Mapping[str, str]
    fixed: Mapping[str, Any]
    dropped: tuple[str, ...] = ()


def _layer(pairs: Mapping[str, str], suffix: str = "weight", change: Change = Change.NONE) -> tuple[Row, ...]:
    return tuple(Row(f"blk.*.{gguf}.{suffix}", f"model.layers.*.{hf}.{suffix}", change) for gguf, hf in pairs.items())


_OUTSIDE = (Row("token_embd.weight", "model.embed_tokens.weight"), Row("output.weight", "lm_head.weight"))
_FINAL_NORM = Row("output_norm.weight", "model.norm.weight")
_QKV = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
_OTHERS = {
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_GEMMA_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_INTERLEAVED = (
    Row("blk.*.attn_q.weight", "model.layers.*.self_attn.q_proj.weight", Change.QUERY),
    Row("blk.*.attn_k.weight", "model.layers.*.self_attn.k_proj.weight", Change.KEY),
    Row("blk.*.attn_v.weight", "model.layers.*.self_attn.v_proj.weight"),
)
_PLAIN = (*_OUTSIDE, _FINAL_NORM, *_layer(_QKV), *_layer(_OTHERS), *_layer(_NORMS))
_SIZES = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length",
}
_SILU = {"hidden_act": "silu"}

LLAMA = Architecture(
    "llama",
    "LlamaForCausalLM",
    (*_OUTSIDE, _FINAL_NORM, *_INTERLEAVED, *_layer(_OTHERS), *_layer(_NORMS)),
    _SIZES,
    {**_SILU, "attention_bias": False, "mlp_bias": False},
    dropped=("rope_freqs.weight",),
)
MISTRAL = Architecture(
    "mistral",
    "MistralForCausalLM",
    LLAMA.rows,
    {**_SIZES, "sliding_window": "attention.sliding_window"},
    _SILU,
    dropped=("rope_freqs.weight",),
)
QWEN2 = Architecture("qwen2", "Qwen2ForCausalLM", (*_PLAIN, *_layer(_QKV, "bias")), _SIZES, _SILU)
QWEN3 = Architecture(
    "qwen3",
    "Qwen3ForCausalLM",
    (*_PLAIN, *_layer({"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"})),
    _SIZES,
    {**_SILU, "attention_bias": False},
)
GEMMA2 = Architecture(
    "gemma2",
    "Gemma2ForCausalLM",
    (
        *_OUTSIDE,
        Row(_FINAL_NORM.gguf, _FINAL_NORM.hf, Change.PLUS_ONE),
        *_layer(_QKV),
        *_layer(_OTHERS),
        *_layer(_GEMMA_NORMS, change=Change.PLUS_ONE),
    ),
    {
        **_SIZES,
        "sliding_window": "attention.sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False},
)
ARCHITECTURES = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "gemma2": GEMMA2}

_REQUIRED = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings", "rms_norm_eps")
_GEMMA_27B_LAYERS = 46  # its queries are scaled by the width of the model over the number of heads; the smaller ones by the head's


def architecture_of(metadata: Mapping[str, Any], source: str) -> Architecture:
    """The table for a file.

    Raises:
        ValueError: naming the architecture that is not covered and those that are.
    """
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ValueError(f"{source} has the architecture {name!r}, which is not covered; known are {', '.join(ARCHITECTURES)}")
    if name == "llama" and metadata.get("llama.attention.sliding_window"):
        return MISTRAL
    return ARCHITECTURES[name]


def hf_config(architecture: Architecture, metadata: Mapping[str, Any], *, rope_factors: Values | None, source: str) -> dict[str, Any]:
    """The part of config.json that says what the model computes.

    Args:
        rope_factors: `rope_freqs.weight`, (head_dim / 2,), by which Llama 3.1 and later slow down each rotation; None without.

    Raises:
        ValueError: if a size is missing, experts or a scaling of the rotary positions are not covered.
    """
    prefix = metadata["general.architecture"]
    if metadata.get(f"{prefix}.expert_count"):
        raise ValueError(f"{source} is a mixture of {metadata[f'{prefix}.expert_count']} experts; only dense models are covered")
    if (scaling := metadata.get(f"{prefix}.rope.scaling.type", "none")) != "none":
        raise ValueError(
            f"{source} scales its rotary positions by the type {scaling!r}, which is not covered; known are none and Llama 3's"
        )
    config = {key: metadata[f"{prefix}.{name}"] for key, name in architecture.config.items() if f"{prefix}.{name}" in metadata}
    config |= {key: shortest_float32(value) for key, value in config.items() if isinstance(value, float)}
    if missing := [f"{prefix}.{architecture.config[key]}" for key in _REQUIRED if key not in config]:
        raise ValueError(f"{source} has no {', '.join(missing)} in its metadata; copy or download it again")
    config |= {"model_type": architecture.model_type, "architectures": [architecture.hf_class], **architecture.fixed}
    if architecture is GEMMA2:
        is_27b = config["num_hidden_layers"] == _GEMMA_27B_LAYERS
        config["query_pre_attn_scalar"] = config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]
    if rope_factors is not None:
        config["rope_scaling"] = llama3_scaling(rope_factors, config, source)
    return config


def shortest_float32(value: float) -> float:
    """The shortest number that is this one in float32, which is what the file was made from: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def llama3_scaling(factors: Values, config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """`rope_scaling` of config.json that gives the factors of a file, (head_dim // 2,), which has only the result.

    All published models have the frequency bounds 1 and 4 of 8,192 tokens (Dubey et al. 2024) and differ in the factor alone.

    Raises:
        ValueError: if that gives other factors.
    """
    scaling = {
        "rope_type": "llama3",
        "factor": shortest_float32(float(factors.max())),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    wavelengths = 2 * np.pi * config.get("rope_theta", 10000.0) ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (scaling["original_max_position_embeddings"] / wavelengths - 1.0) / (4.0 - 1.0)
    expected = 1 / ((1 - smooth.clip(0, 1)) / scaling["factor"] + smooth.clip(0, 1))
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ValueError(
            f"{source} has factors of rotary positions (rope_freqs.weight) that are not those of Llama 3.1 and later; not covered"
        )
    return scaling


def hf_names(architecture: Architecture, names: Sequence[str], num_layers: int, source: str) -> Iterator[tuple[str, str, Change]]:
    """(name in the file, name in a Hugging Face checkpoint, change to undo) for all tensors.

    Raises:
        ValueError: naming all tensors that are left over or missing.
    """
    table = {
        row.gguf.replace("*", str(layer)): (row.hf.replace("*", str(layer)), row.change)
        for row in architecture.rows
        for layer in (range(num_layers) if "*" in row.gguf else (0,))
    }
    unknown = [name for name in names if name not in table and name not in architecture.dropped]
    missing = [name for name in table if name not in names and name != "output.weight"]  # absent where it is the embedding
    if unknown or missing:
        said = [f"has {', '.join(_shortened(unknown))}, which {architecture.model_type} does not have"] if unknown else []
        said += [f"lacks {', '.join(_shortened(missing))}"] if missing else []
        raise ValueError(f"{source} {' and '.join(said)}")
    return ((name, *table[name]) for name in names if name in table)


def _shortened(names: Sequence[str]) -> list[str]:
    """Each name once for all layers."""
    return list(dict.fromkeys(re.sub(r"^blk\.\d+\.", "blk.*.", name) for name in names))


def undone(values: Values, change: Change, *, num_heads: int, num_key_value_heads: int) -> Values:
    """The values as Hugging Face has them.

    Args:
        values: (heads * head_dim, columns) where heads are interleaved, else of any shape.
    """
    match change:
        case Change.NONE:
            return values
        case Change.PLUS_ONE:
            return values - np.float32(1)
        case Change.QUERY | Change.KEY:
            heads = num_heads if change is Change.QUERY else num_key_value_heads
            pairs = values.reshape(heads, -1, 2, *values.shape[1:])  # (head, half of head_dim, which half, columns)
            return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
