"""FAMILIES: the model families that can be converted, by the `model_type` of their config.json.

A new family is one file here: a table of rules and a translation of the configuration.
"""

from __future__ import annotations

from conversion.families.family import Family
from conversion.families.gemma2 import GEMMA2
from conversion.families.llama import LLAMA
from conversion.families.mistral import MISTRAL
from conversion.families.opt import OPT
from conversion.families.qwen import QWEN2, QWEN3
from conversion.families.roberta import ROBERTA, XLM_ROBERTA

FAMILIES = {family.model_type: family for family in (OPT, LLAMA, MISTRAL, GEMMA2, QWEN2, QWEN3, ROBERTA, XLM_ROBERTA)}


def family_of(model_type: str, *, source: str) -> Family:
    """The family of a model type.

    Args:
        source: what the error calls the checkpoint.

    Raises:
        ValueError: naming the known families, if this is none of them.
    """
    if model_type not in FAMILIES:
        raise ValueError(f"{source} is of the model type {model_type or '(none)'}, which is not covered; known are {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
