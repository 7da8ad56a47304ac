"""Mistral 7B (Jiang et al. 2023): Llama with sliding-window attention over the last `sliding_window` tokens.

Later versions (0.2, 0.3) have no window and are covered too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from conversion.families import llama
from conversion.families.family import Family, Require

REQUIREMENTS = (
    llama.NO_OTHER_ACTIVATION,
    llama.ALL_DIMENSIONS_ROTATE,
    Require("layer_types", None, "models whose layers differ, such as Ministral 8B of 2024, are not supported"),
)

DEFAULTS = {
    **llama.DEFAULTS,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def window(tokens: int) -> dict[str, list[int]]:
    """Megatron's window for a Hugging Face one: how many tokens before and after its own a query sees.

    Hugging Face counts the token itself, Megatron does not.  NeMo's own converter hands the number over as it is.
    """
    return {"window_size": [tokens - 1, 0]}


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for Mistral's config.json; see `llama.to_megatron`."""
    tokens = config["sliding_window"]
    return {**llama.to_megatron(config), **(window(tokens) if tokens is not None else {})}


MISTRAL = Family(
    "mistral",
    llama.TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=llama.ARCHITECTURE,
    requirements=REQUIREMENTS,
    nemo=partial(llama.nemo_classes, module="mistral", model="MistralModel", config="MistralConfig7B"),
)
