"""Ministral 3 and Devstral 2 (Mistral AI 2025): Mistral with YaRN and an attention temperature that depends on the position.

Most stand beside a vision tower (`mistral3`), which is kept aside as it is.  So does the plain Mistral of Mistral Small 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conversion.checkpoints.hf_files import MINISTRAL3_DEFAULTS
from conversion.families import llama, mistral
from conversion.families.family import Family, Require
from conversion.families.gemma3 import beside_a_tower

DEFAULTS = {**mistral.DEFAULTS, **MINISTRAL3_DEFAULTS}

# What transformers takes for a language model that a file of `mistral3` leaves out: that of Mistral Small 3.1.
_MISTRAL_SMALL = {
    "vocab_size": 131072,
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000000.0,
    "sliding_window": None,
}


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for Ministral 3's config.json; see `llama.to_megatron`.

    A query at position p is multiplied by 1 + beta * log(1 + floor(p / positions)), so that attention over long texts stays sharp.
    """
    rope = config["rope_scaling"] or DEFAULTS["rope_scaling"]
    numbers = mistral.to_megatron({**config, "rope_scaling": rope})
    beta, positions = rope["llama_4_scaling_beta"], rope["original_max_position_embeddings"]
    if beta == 0:
        return numbers
    return {**numbers, "query_temperature_beta": beta, "query_temperature_positions": positions}


MINISTRAL3 = Family(
    "ministral3",
    llama.TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=llama.ARCHITECTURE,
    requirements=mistral.REQUIREMENTS,
    nemo=mistral.MISTRAL.nemo,
)


def _language_part(config: Mapping[str, Any]) -> Any:
    """A `text_config` that does not name its type is of Mistral."""
    part = config.get("text_config")
    part = _MISTRAL_SMALL if part is None else part
    if not isinstance(part, Mapping) or part.get("model_type", "mistral") != "mistral":
        return part
    return {"model_type": "mistral", **mistral.DEFAULTS, **part}


def _of_either(config: Mapping[str, Any]) -> dict[str, Any]:
    return (mistral.to_megatron if config["model_type"] == "mistral" else to_megatron)(config)


MISTRAL3 = replace(
    MINISTRAL3,
    model_type="mistral3",
    to_megatron=_of_either,
    requirements=(
        Require("model_type", "ministral3", "language models of other types are not supported beside its vision tower", also=("mistral",)),
        *mistral.REQUIREMENTS,
    ),
    **beside_a_tower(llama.TABLE),
    language_part=_language_part,
)
