"""A checkpoint and data sets that exist as their facts alone, for checks that read nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from common.artifacts import Manifest
from recipes.planner.hardware import Gpu
from recipes.rules.checks import check_run
from recipes.rules.compose import compose_recipe
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe

MICRO_BATCH, LENGTH = 4, 64  # of samples whose activations are counted
MODEL = {
    "num_layers": 4,
    "hidden_size": 96,
    "ffn_hidden_size": 384,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
    "vocab_size": 1001,
    "share_embeddings_and_output_weights": True,
}
_DATA = {"tokenizer_digest": "xxh3:a", "vocab_size": 1001, "text_bytes": 200_000, "eos_token_id": 2}


def small_inputs(*tokens: int, data: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}) -> RunInputs:
    """A data set of each number of tokens.

    Args:
        data, checkpoint: facts that differ from those that fit together.
    """
    return RunInputs(
        family="opt",
        model=MODEL,
        checkpoint=Manifest(stage="conversion.hf_to_nemo", facts={"tokenizer_digest": "xxh3:a", **checkpoint}),
        train=tuple(Manifest(stage="data_prep.to_megatron", facts={**_DATA, "num_tokens": n, **data}) for n in tokens),
    )


def checked(inputs: RunInputs, *overrides: str, visible: Gpu | None = None) -> Recipe:
    """The recipe of a run, if its check finds nothing."""
    return check_run(compose_recipe("demo_adapt", overrides), inputs, visible=visible)


def problem(inputs: RunInputs, *overrides: str, visible: Gpu | None = None) -> str:
    """What the check of a run says, without the words that every refusal begins with."""
    with pytest.raises(ValueError) as error:
        checked(inputs, *overrides, visible=visible)
    return str(error.value).removeprefix("recipe demo_adapt cannot run: ")
