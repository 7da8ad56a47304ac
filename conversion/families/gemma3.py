"""Gemma 3 (Kamath et al. 2025): Gemma 2's four norms and scaled embeddings, norms on query and key, no caps, two rotations.

Five layers of six see a window and rotate by one base (10,000); the sixth sees all and rotates by another (1,000,000), in the larger models with
positions divided by 8.  The smallest is a text-only model (`gemma3_text`); the others stand beside a vision tower (`gemma3`), which is kept
aside as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from conversion.families import gemma2, llama
from conversion.families.family import Family, NeMoClasses, Require
from conversion.families.mapping import Beside, Rule, below
from conversion.families.mistral import window
from conversion.families.qwen import QK_NORMS

FULL, WINDOW = "full_attention", "sliding_attention"

TABLE = (*gemma2.TABLE, QK_NORMS)


def beside_a_tower(table: Sequence[Rule]) -> dict[str, Any]:
    """Tables of a language model beside a vision tower: by the names of published files, and by those of a newer transformers."""
    published = below(table, {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."})
    newer = below(table, {"model.": "model.language_model."})
    return {
        "table": (*published, Beside("vision_tower."), Beside("multi_modal_projector.")),
        "other_tables": ((*newer, Beside("model.vision_tower."), Beside("model.multi_modal_projector.")),),
    }


ARCHITECTURE = {key: value for key, value in gemma2.ARCHITECTURE.items() if key != "window_attn_skip_freq"} | {"qk_layernorm": True}

DEFAULTS = {
    **gemma2.DEFAULTS,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window_pattern": 6,
}

REQUIREMENTS = (
    *gemma2.REQUIREMENTS,
    Require("attn_logit_softcapping", None, "Gemma 3 has no caps, and transformers ignores this one"),
    Require("final_logit_softcapping", None, "Gemma 3 has no caps, and transformers ignores this one beside a vision tower"),
)

ROPE_TYPES = ("default", "linear")


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for the config.json of Gemma 3, or for the `text_config` in it; see `llama.to_megatron`.

    Raises:
        ValueError: for windows in another order than n layers with and one without, or for another kind of rotations.
    """
    if config["sliding_window"] is None:
        raise ValueError(
            "sliding_window is null in config.json, but most layers of Gemma 3 have a window, which transformers cannot compute without its"
            " length; give the number of tokens (512 in the published model of 1B, 1024 in the others)"
        )
    return {
        **llama.to_megatron({**config, "rope_scaling": None}),
        **window(config["sliding_window"]),
        "window_attn_skip_freq": layers_of_a_period(config),
        "query_pre_attn_scalar": config["query_pre_attn_scalar"],
        "rotary_base_local": config["rope_local_base_freq"],
        "rope_scaling_factor": _scaling(config["rope_scaling"]),
    }


def layers_of_a_period(config: Mapping[str, Any]) -> int:
    """Every so many layers one has no window."""
    found, num_layers = config["layer_types"], config["num_hidden_layers"]
    none_is_full: int = num_layers + 1
    if found is None:
        return min(config["sliding_window_pattern"], none_is_full)
    period = list(found).index(FULL) + 1 if FULL in found else none_is_full
    if list(found) != [WINDOW if (layer + 1) % period else FULL for layer in range(num_layers)]:
        raise ValueError(
            f"layer_types in config.json does not repeat so many {WINDOW} and one {FULL} over all {num_layers} layers: such models are not"
            " supported"
        )
    return period


def _scaling(rope: Mapping[str, Any] | None) -> float:
    """What positions are divided by in layers without a window."""
    rope = rope or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"rope_scaling in config.json is of the type {rope_type!r}, which is not supported; known are {', '.join(ROPE_TYPES)}"
        )
    factor: float = rope["factor"] if rope_type == "linear" else 1.0
    return factor


def in_words_of_nemo(megatron: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as NeMo and Megatron-Bridge have it: both bases, the window's tokens alone, its pattern, the scale of the scores itself."""
    ours = ("rotary_base", "rotary_base_local", "window_size", "window_attn_skip_freq", "query_pre_attn_scalar", "qk_layernorm")
    base, local_base, (before, _), period, scalar, _ = (megatron[key] for key in ours)
    return {
        **{key: value for key, value in megatron.items() if key not in ours},
        "rotary_base": (local_base, base),
        "window_size": before,
        "interleaved_attn_pattern": (period - 1, 1),
        "softmax_scale": scalar**-0.5,
    }


def _nemo(megatron: Mapping[str, Any]) -> NeMoClasses:
    fields = {
        **in_words_of_nemo(megatron),
        # NeMo means the approximation by tanh, which its default has from this fusion alone, beside an activation that is exact.
        "bias_activation_fusion": False,
    }
    # The general configuration lacks `rope_scaling_factor`, which the model asks for; that of 1B has it, and all sizes are given.
    return NeMoClasses("nemo.collections.llm.gpt.model.gemma3", model="Gemma3Model", config="Gemma3Config1B", fields=fields)


GEMMA3_TEXT = Family(
    "gemma3_text",
    TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=ARCHITECTURE,
    requirements=REQUIREMENTS,
    nemo=_nemo,
)

GEMMA3 = replace(
    GEMMA3_TEXT,
    model_type="gemma3",
    **beside_a_tower(TABLE),
    language_part=lambda config: config.get("text_config") or {},  # transformers takes an absent one for its class's defaults
)
