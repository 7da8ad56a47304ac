"""OPT (Zhang et al. 2022) as a NeMo model.

NeMo has no OPT, but Megatron-core can express it: pre-LayerNorm, ReLU, biases everywhere, learned positions.  The
position offset of 2 of the Hugging Face model is no matter here: the converter keeps its rows 0 and 1 aside, so
position p reads row p.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_patches.engine_model import EngineConfig, engine_config


@dataclass
class OPTConfig(EngineConfig):
    """OPT for Megatron-core; sizes come from the checkpoint's `context/model.json`."""

    normalization: str = "LayerNorm"
    gated_linear_unit: bool = False
    add_bias_linear: bool = True
    add_qkv_bias: bool = True
    layernorm_zero_centered_gamma: bool = False
    position_embedding_type: str = "learned_absolute"


def opt_config(model: Mapping[str, Any], **arguments: Any) -> OPTConfig:
    """The configuration of a checkpoint for a layout; see `engine_config`."""
    return engine_config({"activation_func": "relu", **model}, kind=OPTConfig, **arguments)
