"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020): BERT with learned positions that begin at row 2, and a head under other names.

Hugging Face numbers positions from the id of the padding token + 1 on; rows 0 and 1 of the position table belong to padding.  Megatron
numbers them from 0, so its table begins at their row 2, and rows 0 and 1 are kept aside for the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conversion.families import bert
from conversion.families.family import Family, Require
from conversion.families.mapping import SplitRows

_PADDING_ROWS = 2

TABLE = (
    *bert.body("roberta"),
    SplitRows(
        "roberta.embeddings.position_embeddings.weight",
        "{kept.position_rows,embedding.position_embeddings.weight}",
        ("max_position_embeddings", "hidden_size"),
        num_kept_rows=_PADDING_ROWS,
    ),
    *bert.head("lm_head", transform="dense", norm="layer_norm"),
)

REQUIREMENTS = (
    *bert.REQUIREMENTS,
    Require(
        "pad_token_id", 1, "positions are counted from the padding token, and only those of published models (from row 2 on) are supported"
    ),
)

DEFAULTS = {**bert.DEFAULTS, "vocab_size": 50265}
XLM_DEFAULTS = {**bert.DEFAULTS, "vocab_size": 30522}


def to_megatron(config: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron's configuration for a config.json."""
    return {**bert.to_megatron(config), "max_position_embeddings": config["max_position_embeddings"] - _PADDING_ROWS}


def _family(model_type: str, defaults: Mapping[str, Any]) -> Family:
    return Family(
        model_type,
        TABLE,
        to_megatron,
        engine=bert.ENGINE,
        defaults=defaults,
        architecture=bert.ARCHITECTURE,
        requirements=REQUIREMENTS,
        masked=True,
    )


ROBERTA, XLM_ROBERTA = _family("roberta", DEFAULTS), _family("xlm-roberta", XLM_DEFAULTS)
