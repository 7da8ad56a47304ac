"""Dense Granite 3 (IBM 2024): Llama whose embeddings, scores, branches and logits are multiplied by four numbers (muP: Yang et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.families import llama
from conversion.families.family import Family

MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")

DEFAULTS = {**llama.DEFAULTS, **dict.fromkeys(MULTIPLIERS, 1.0)}


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for Granite's config.json, and the four multipliers under their own names; see `llama.to_megatron`."""
    return {**llama.to_megatron(config), **{key: config[key] for key in MULTIPLIERS}}


GRANITE = Family(
    "granite",
    llama.TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=llama.ARCHITECTURE,
    requirements=llama.REQUIREMENTS,
)
