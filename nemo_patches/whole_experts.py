"""Which models have experts that every tensor-parallel rank has as a whole, for code that imports no engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def has_biased_experts(model: Mapping[str, Any]) -> bool:
    """Whether experts have biases, with which Megatron-core cuts them among no ranks; of the `config` of `context/model.json`."""
    return bool(model.get("num_moe_experts")) and bool(model.get("add_bias_linear", True))
