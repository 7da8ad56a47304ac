"""What llama.cpp's names mean in Hugging Face's words: one table per architecture, as for model families.

llama.cpp has no architecture for OPT and none for the head of an encoder; Mistral's models are its `llama`, OLMo 3's its `olmo2`, and either is told by its
window.  Facts: gguf-py's `constants.py` and `tensor_mapping.py`, what the conversion of each architecture does to a tensor, and what
llama.cpp takes for granted where a file is silent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    EXPERTS = "the matrices of all experts are one tensor, (experts, rows, columns), where Hugging Face has one each"
    TRANSPOSED = "each expert's matrix is transposed"
    DIVIDED = "what Hugging Face has in turns, gate and linear part, is two tensors, and each expert's matrix is transposed"


@dataclass(frozen=True)
class Row:
    """A tensor under both names; `*` stands for each layer number, `{expert}` for each expert's.

    Attributes:
        other: the second tensor of what was divided.
    """

    gguf: str
    hf: str
    change: Change = Change.NONE
    other: str | None = None


@dataclass(frozen=True)
class Listed:
    """A small tensor of each layer whose values stand in the metadata, as a list over the layers or one number for all."""

    key: str
    hf: str
    shape: tuple[int, ...]


Get = Callable[[str, Any], Any]
"""Gives the metadata behind the architecture's name, or else what is given."""


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
        listed: tensors that the file has as metadata.
        derived: gives what follows for config.json from what was found so far and from other keys.
    """

    model_type: str
    hf_class: str
    rows: Sequence[Row]
    config: Mapping[str, str]
    fixed: Mapping[str, Any]
    dropped: tuple[str, ...] = ()
    listed: Sequence[Listed] = ()
    derived: Callable[[Mapping[str, Any], Get], dict[str, Any]] | None = None


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
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
QWEN3 = Architecture("qwen3", "Qwen3ForCausalLM", (*_PLAIN, *_layer(_QK_NORMS)), _SIZES, {**_SILU, "attention_bias": False})
_EXPERTS = {f"ffn_{part}_exps": f"mlp.experts.{{expert}}.{part}_proj" for part in ("gate", "up", "down")}
_EXPERT_SIZES = {"num_experts_per_tok": "expert_used_count"}
QWEN3_MOE = Architecture(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    (
        *_OUTSIDE,
        _FINAL_NORM,
        *_layer(_QKV | _QK_NORMS | _NORMS | {"attn_output": "self_attn.o_proj", "ffn_gate_inp": "mlp.gate"}),
        *_layer(_EXPERTS, change=Change.EXPERTS),
    ),
    {**_SIZES, **_EXPERT_SIZES, "num_experts": "expert_count", "moe_intermediate_size": "expert_feed_forward_length"},
    # Its shares are those of the chosen experts alone in llama.cpp, whatever the model's own configuration said.
    {**_SILU, "attention_bias": False, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
)

WINDOW, FULL = "sliding_attention", "full_attention"


def _layer_types(config: Mapping[str, Any], get: Get, period: int) -> dict[str, Any]:
    """Which layers have a window: as the file lists them, or all but every so many-th."""
    pattern = get("attention.sliding_window_pattern", period)
    num_layers = config["num_hidden_layers"]
    has_window = pattern if isinstance(pattern, list) else [pattern == 0 or (layer + 1) % pattern != 0 for layer in range(num_layers)]
    return {"layer_types": [WINDOW if windowed else FULL for windowed in has_window]} if config.get("sliding_window") else {}


_GEMMA_27B_LAYERS = {
    "gemma2": 46,
    "gemma3": 62,
}  # its queries are scaled by the width of the model over the number of heads; the others by the head's


def _gemma2(config: Mapping[str, Any], get: Get) -> dict[str, Any]:
    is_27b = config["num_hidden_layers"] == _GEMMA_27B_LAYERS["gemma2"]
    return {"query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]}


def _gemma3(config: Mapping[str, Any], get: Get) -> dict[str, Any]:
    is_27b = config["num_hidden_layers"] == _GEMMA_27B_LAYERS["gemma3"]
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"],
        "rope_local_base_freq": get("rope.freq_base_swa", 10000.0),
        **_layer_types(config, get, 6),
    }


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
    derived=_gemma2,
)
GEMMA3 = Architecture(
    "gemma3_text",  # its vision tower is another file
    "Gemma3ForCausalLM",
    (*GEMMA2.rows, *_layer(_QK_NORMS, change=Change.PLUS_ONE)),
    {key: name for key, name in GEMMA2.config.items() if key != "attn_logit_softcapping"},
    GEMMA2.fixed,
    derived=_gemma3,
)
SMOLLM3 = replace(
    LLAMA,
    model_type="smollm3",
    hf_class="SmolLM3ForCausalLM",
    derived=lambda config, get: {"no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(config["num_hidden_layers"])]},
)
OLMO2 = Architecture(
    "olmo2",
    "Olmo2ForCausalLM",
    (
        *_OUTSIDE,
        _FINAL_NORM,
        *_layer(_QKV | _OTHERS | _QK_NORMS),
        *_layer({"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}),
    ),
    _SIZES,
    {**_SILU, "attention_bias": False},
)
OLMO3 = replace(
    OLMO2,
    model_type="olmo3",
    hf_class="Olmo3ForCausalLM",
    config={**_SIZES, "sliding_window": "attention.sliding_window"},
    derived=lambda config, get: _layer_types(config, get, 4),
)
_XIELU = "model.layers.*.mlp.act_fn"
APERTUS = Architecture(
    "apertus",
    "ApertusForCausalLM",
    (
        *_OUTSIDE,
        _FINAL_NORM,
        *_layer(_QKV | _QK_NORMS | {key: name for key, name in _OTHERS.items() if key != "ffn_gate"}),
        *_layer({"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"}),
    ),
    _SIZES,
    {"hidden_act": "xielu", "attention_bias": False, "mlp_bias": False},
    dropped=LLAMA.dropped,
    listed=(
        *(Listed(f"xielu.{name}", f"{_XIELU}.{name}", (1,)) for name in ("alpha_p", "alpha_n")),
        *(Listed(f"xielu.{name}", f"{_XIELU}.{name}", ()) for name in ("beta", "eps")),
    ),
)


def _granite(config: Mapping[str, Any], get: Get) -> dict[str, Any]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {
        "attention_multiplier": get("attention.scale", 0) or head_dim**-0.5,
        "embedding_multiplier": get("embedding_scale", 0) or 1.0,
        "residual_multiplier": get("residual_scale", 0) or 1.0,
        "logits_scaling": get("logit_scale", 0) or 1.0,
    }


GRANITE = replace(LLAMA, model_type="granite", hf_class="GraniteForCausalLM", derived=_granite)
_OF_EXPERTS = "model.layers.*.mlp.experts"
GPT_OSS = Architecture(
    "gpt_oss",
    "GptOssForCausalLM",
    (
        *_OUTSIDE,
        _FINAL_NORM,
        *(
            row
            for suffix in ("weight", "bias")
            for row in _layer(_QKV | {"attn_output": "self_attn.o_proj", "ffn_gate_inp": "mlp.router"}, suffix)
        ),
        *_layer({"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}),
        Row("blk.*.attn_sinks.weight", "model.layers.*.self_attn.sinks"),
        Row("blk.*.ffn_gate_exps.weight", f"{_OF_EXPERTS}.gate_up_proj", Change.DIVIDED, "blk.*.ffn_up_exps.weight"),
        Row("blk.*.ffn_gate_exps.bias", f"{_OF_EXPERTS}.gate_up_proj_bias", Change.DIVIDED, "blk.*.ffn_up_exps.bias"),
        Row("blk.*.ffn_down_exps.weight", f"{_OF_EXPERTS}.down_proj", Change.TRANSPOSED),
        Row("blk.*.ffn_down_exps.bias", f"{_OF_EXPERTS}.down_proj_bias"),
    ),
    {**_SIZES, **_EXPERT_SIZES, "num_local_experts": "expert_count", "sliding_window": "attention.sliding_window"},
    {**_SILU, "attention_bias": True, "swiglu_limit": 7.0},
    derived=lambda config, get: _layer_types(config, get, 2),
)
MINISTRAL3 = replace(MISTRAL, model_type="ministral3", hf_class="Ministral3ForCausalLM")
ARCHITECTURES = {
    "llama": LLAMA,
    "mistral3": MINISTRAL3,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3moe": QWEN3_MOE,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "smollm3": SMOLLM3,
    "olmo2": OLMO2,
    "apertus": APERTUS,
    "granite": GRANITE,
    "gpt-oss": GPT_OSS,
}
_WITH_WINDOW = {"llama": MISTRAL, "olmo2": OLMO3}

TEMPERATURE = "attention.temperature_scale"
_REQUIRED = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings", "rms_norm_eps")
_REQUIRED_OF_EXPERTS = ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size")


def architecture_of(metadata: Mapping[str, Any], source: str) -> Architecture:
    """The table for a file.

    Raises:
        ValueError: naming the architecture that is not supported and those that are.
    """
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ValueError(f"{source} has the architecture {name!r}, which is not supported; known are {', '.join(ARCHITECTURES)}")
    if name == "mistral3" and f"{name}.{TEMPERATURE}" not in metadata:  # a plain Mistral, as in Mistral Small 3.1
        return MISTRAL if metadata.get(f"{name}.attention.sliding_window") else LLAMA
    has_window = metadata.get(f"{name}.attention.sliding_window") and name in _WITH_WINDOW
    return _WITH_WINDOW[name] if has_window else ARCHITECTURES[name]


def hf_config(architecture: Architecture, metadata: Mapping[str, Any], *, rope_factors: Values | None, source: str) -> dict[str, Any]:
    """The part of config.json that says what the model computes.

    Args:
        rope_factors: `rope_freqs.weight`, (head_dim / 2,), by which Llama 3.1 and later slow down each rotation; None without.

    Raises:
        ValueError: if a size is missing; if experts, a scaling of the rotary positions, or none of them, are not supported.
    """
    prefix = metadata["general.architecture"]

    def get(key: str, default: Any) -> Any:
        value = metadata.get(f"{prefix}.{key}", default)
        return shortest_float32(value) if isinstance(value, float) else value

    has_experts = "num_experts_per_tok" in architecture.config
    if get("expert_count", 0) and not has_experts:
        raise ValueError(
            f"{source} is a mixture of {get('expert_count', 0)} experts; of {architecture.model_type} only dense models are supported"
        )
    if not get("rope.scaling.finetuned", True):
        raise ValueError(f"{source} does without rotary positions (rope.scaling.finetuned is false), which is not supported")
    config = {key: get(name, None) for key, name in architecture.config.items() if f"{prefix}.{name}" in metadata}
    required = [*_REQUIRED, *(key for key in _REQUIRED_OF_EXPERTS if key in architecture.config)]
    if missing := [f"{prefix}.{architecture.config[key]}" for key in required if key not in config]:
        raise ValueError(f"{source} has no {', '.join(missing)} in its metadata; copy or download it again")
    config |= {"model_type": architecture.model_type, "architectures": [architecture.hf_class], **architecture.fixed}
    if architecture.derived is not None:
        config |= architecture.derived(config, get)
    if rope_factors is not None:
        config["rope_scaling"] = llama3_scaling(rope_factors, config, source)
    elif scaling := rope_scaling(architecture, get, source):
        config["rope_scaling"] = scaling
    return config


def rope_scaling(architecture: Architecture, get: Get, source: str) -> dict[str, Any] | None:
    """`rope_scaling` of config.json for a type that a file names; Llama 3's it does not name.

    Raises:
        ValueError: for another type than linear and YaRN.
    """
    kind = get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ValueError(
            f"{source} scales its rotary positions by the type {kind!r}, which is not supported; known are none, linear, yarn and Llama 3's"
        )
    factor = get("rope.scaling.factor", 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": get("rope.scaling.original_context_length", None),
        "beta_fast": get("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": get("rope.scaling.yarn_beta_slow", 1.0),
    }
    if scaling["original_max_position_embeddings"] is None:
        raise ValueError(
            f"{source} has no length that its YaRN begins from (rope.scaling.original_context_length); copy or download it again"
        )
    if (multiplier := get("rope.scaling.yarn_attn_factor", None)) is not None:
        by_factor = 0.1 * math.log(factor) + 1.0  # Peng et al. 2023, equation 22
        scaling["attention_factor"] = by_factor if math.isclose(multiplier, by_factor, rel_tol=1e-6) else multiplier
    if (log_multiplier := get("rope.scaling.yarn_log_multiplier", None)) is not None:
        scaling |= {"mscale": 1.0, "mscale_all_dim": log_multiplier}
    if architecture is MINISTRAL3:
        scaling["llama_4_scaling_beta"] = get(TEMPERATURE, None)
    # gpt-oss does not round where its ramp begins and ends; llama.cpp does for all models, and files do not tell.
    return scaling | ({"truncate": False} if architecture is GPT_OSS else {})


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
            f"{source} has factors of rotary positions (rope_freqs.weight) that are not those of Llama 3.1 and later; not supported"
        )
    return scaling


@dataclass(frozen=True)
class Place:
    """Where the values of one of Hugging Face's tensors stand in a file.

    Attributes:
        hf: its name.
        names: of the tensors in the file, two where it was divided.
        expert: whose matrix it is in a tensor of all experts.
    """

    hf: str
    names: tuple[str, ...]
    change: Change
    expert: int | None = None


def places(architecture: Architecture, names: Sequence[str], config: Mapping[str, Any], source: str) -> Iterator[Place]:
    """Where all tensors of a Hugging Face checkpoint stand in a file with tensors of these names, in its order.

    Args:
        config: of `hf_config`.

    Raises:
        ValueError: naming all tensors that are left over or missing.
    """
    table: dict[str, list[Place]] = {}
    seconds = set()
    for row in architecture.rows:
        for layer in map(str, range(config["num_hidden_layers"]) if "*" in row.gguf else (0,)):
            found = tuple(name.replace("*", layer) for name in (row.gguf, row.other) if name)
            hf = row.hf.replace("*", layer)
            experts = range(config["num_experts"]) if row.change is Change.EXPERTS else (None,)
            table[found[0]] = [Place(hf.format(expert=expert), found, row.change, expert) for expert in experts]
            seconds |= set(found[1:])
    known = table.keys() | seconds
    unknown = [name for name in names if name not in known and name not in architecture.dropped]
    missing = [
        name for name in [*table, *sorted(seconds)] if name not in names and name != "output.weight"
    ]  # absent where it is the embedding
    if unknown or missing:
        problems = [f"has {', '.join(_shortened(unknown))}, which {architecture.model_type} does not have"] if unknown else []
        problems += [f"lacks {', '.join(_shortened(missing))}"] if missing else []
        raise ValueError(f"{source} {' and '.join(problems)}")
    return (place for name in names if name in table for place in table[name])


def _shortened(names: Sequence[str]) -> list[str]:
    """Each name once for all layers."""
    return list(dict.fromkeys(re.sub(r"^blk\.\d+\.", "blk.*.", name) for name in names))


def undone(values: Values, change: Change, *, num_heads: int, num_key_value_heads: int) -> Values:
    """The values of one tensor as Hugging Face has them; those of experts are put together by `conversion.gguf.model`.

    Args:
        values: (heads * head_dim, columns) where heads are interleaved, else of any shape.
    """
    match change:
        case Change.PLUS_ONE:
            return values - np.float32(1)
        case Change.QUERY | Change.KEY:
            heads = num_heads if change is Change.QUERY else num_key_value_heads
            pairs = values.reshape(heads, -1, 2, *values.shape[1:])  # (head, half of head_dim, which half, columns)
            return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
        case _:
            return values
