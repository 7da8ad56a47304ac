"""FAMILIES: the model families that can be converted, by the `model_type` of their config.json.

A new family is one file here: a table of rules and a translation of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.checkpoints.hf_files import language_part
from conversion.families.apertus import APERTUS
from conversion.families.bert import BERT
from conversion.families.family import Family
from conversion.families.gemma import GEMMA
from conversion.families.gemma2 import GEMMA2
from conversion.families.gemma3 import GEMMA3, GEMMA3_TEXT
from conversion.families.gpt_oss import GPT_OSS
from conversion.families.granite import GRANITE
from conversion.families.llama import LLAMA
from conversion.families.ministral3 import MINISTRAL3, MISTRAL3
from conversion.families.mistral import MISTRAL
from conversion.families.olmo2 import OLMO2
from conversion.families.olmo3 import OLMO3
from conversion.families.opt import OPT
from conversion.families.phi3 import PHI3
from conversion.families.qwen import QWEN2, QWEN3
from conversion.families.qwen3_moe import QWEN3_MOE
from conversion.families.roberta import ROBERTA, XLM_ROBERTA
from conversion.families.smollm3 import SMOLLM3

_ALL = (
    OPT,
    LLAMA,
    MISTRAL,
    MINISTRAL3,
    MISTRAL3,
    GEMMA,
    GEMMA2,
    GEMMA3_TEXT,
    GEMMA3,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    GPT_OSS,
    SMOLLM3,
    OLMO2,
    OLMO3,
    APERTUS,
    GRANITE,
    PHI3,
    BERT,
    ROBERTA,
    XLM_ROBERTA,
)
FAMILIES = {family.model_type: family for family in _ALL}
OTHERS = "transfer, edit_vocabulary, merge, inspect and verify of `conversion` work on the Hugging Face folders of other types"


def language_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of the language model, whether that is all of the model or stands beside others in `text_config`.

    Of a part, keys that are left out have the values that transformers gives them, as published files leave out even the vocabulary's size.
    """
    part = language_part(config)
    family = FAMILIES.get(str(config.get("model_type")))
    if part is None or family is None:
        return config if part is None else part
    return family.language_config(config)


def reads_quantized(config: Mapping[str, Any]) -> bool:
    """Whether a config.json names a quantization of its family whose numbers are read; see `HFCheckpoint.whole`."""
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.reads_quantized(config)


def family_of(model_type: str, *, source: str) -> Family:
    """The family of a model type.

    Args:
        source: what the error calls the checkpoint.

    Raises:
        ValueError: naming the known families, if this is none of them.
    """
    if model_type not in FAMILIES:
        raise ValueError(
            f"{source} is of the model type {model_type or '(none)'}, which is not supported; known are {', '.join(FAMILIES)}; {OTHERS}"
        )
    return FAMILIES[model_type]
