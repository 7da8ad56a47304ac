"""SmolLM3 (Bakouch et al. 2025): Llama whose every fourth layer rotates neither queries nor keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from conversion.families import llama
from conversion.families.family import Family, Require

DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 2000000.0,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
}

REQUIREMENTS = (
    *llama.REQUIREMENTS,
    Require("use_sliding_window", False, "models with sliding-window attention in layers without rotary embeddings are not supported"),
)


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's numbers for SmolLM3's config.json; see `llama.to_megatron`.

    Raises:
        ValueError: if a layer is said to have a window, the layers without rotations are not told one by one, or the rotations are YaRN's.
    """
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError("layer_types in config.json names others than full_attention: models with windows are not supported")
    megatron = llama.to_megatron(config)
    if "yarn_factor" in megatron:  # it multiplies what is rotated, and scores are scaled alike in all layers
        raise ValueError("rope_scaling in config.json is of the type 'yarn', which is not supported beside layers that do not rotate")
    return {**megatron, "no_rope_freq": [int(not rotates) for rotates in _rotating_layers(config)]}


def _rotating_layers(config: Mapping[str, Any]) -> list[int]:
    """1 for each layer that rotates, 0 for each that does not."""
    num_layers, given = config["num_hidden_layers"], config["no_rope_layers"]
    if given is None:
        every = config["no_rope_layer_interval"]
        if every == 0:
            raise ValueError("no_rope_layer_interval in config.json is 0; expected every how many layers one does not rotate, above 0")
        return [int((layer + 1) % every != 0) for layer in range(num_layers)]
    if len(given) < num_layers or set(given) - {0, 1}:
        raise ValueError(
            f"no_rope_layers in config.json has {len(given)} numbers, {', '.join(map(str, sorted(set(given))))}; expected 1 (rotates) or 0 for each of"
            f" the {num_layers} layers"
        )
    return list(given[:num_layers])


SMOLLM3 = Family(
    "smollm3",
    llama.TABLE,
    to_megatron,
    defaults=DEFAULTS,
    architecture=llama.ARCHITECTURE,
    requirements=REQUIREMENTS,
    nemo=partial(llama.nemo_classes, module="llama", model="LlamaModel", config="LlamaConfig"),
)
