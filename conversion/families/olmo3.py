"""OLMo 3 (Team OLMo 2025): OLMo 2 with sliding-window attention in all layers but every n-th, and YaRN in the full-attention layers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.families import llama, olmo2
from conversion.families.family import Family
from conversion.families.gemma3 import layers_of_a_period
from conversion.families.mistral import window

DEFAULTS = {**olmo2.DEFAULTS, "sliding_window": 4096, "layer_types": None}

ROPE_TYPES = ("default", "linear", "dynamic", "yarn")


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for OLMo 3's config.json; see `llama.to_megatron`.

    Raises:
        ValueError: for windows in another order than n layers with and one without, or without their length.
    """
    if config["sliding_window"] is None:
        raise ValueError(
            "sliding_window is null in config.json, but most layers of OLMo 3 have a window, which transformers cannot compute without its"
            " length; give the number of tokens (4096 in the published models)"
        )
    numbers = llama.to_megatron(config, rope_types=ROPE_TYPES)
    slower = numbers.pop("seq_len_interpolation_factor", 1.0)  # in layers without a window alone
    return {
        **numbers,
        **window(config["sliding_window"]),
        "window_attn_skip_freq": layers_of_a_period({**config, "sliding_window_pattern": 4}),
        # Layers with a window rotate by the same base, and by nothing else.
        "rotary_base_local": numbers["rotary_base"],
        "rope_scaling_factor": slower,
    }


OLMO3 = Family(
    "olmo3",
    olmo2.TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=olmo2.ARCHITECTURE,
    requirements=olmo2.REQUIREMENTS,
)
