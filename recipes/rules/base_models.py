"""The published models that the papers start from, in Megatron's words; `base_models.yaml` has their config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.plain_files import read_yaml
from conversion.families import family_of

BASE_MODELS: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("base_models.yaml"))
# What makes an architecture; rotary constants and the like come with the checkpoint.
SHAPE_KEYS = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels")


def base_model(name: str, *, vocab_size: int | None = None, tied: bool | None = None) -> tuple[str, dict[str, Any]]:
    """Family and Megatron's configuration of a published model.

    Args:
        vocab_size, tied: of a model made from it; by default its own.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in BASE_MODELS:
        raise ValueError(f"model.base is {name!r}; expected one of {', '.join(BASE_MODELS)}")
    published = dict(BASE_MODELS[name])
    published["vocab_size"] = vocab_size or published["vocab_size"]
    tied = bool(published.get("tie_word_embeddings", False)) if tied is None else tied
    family = family_of(published["model_type"], source=name)
    return family.model_type, family.megatron_config({**published, "tie_word_embeddings": tied}, tied=tied, source=name)
