"""The planner's bytes against what autograd keeps and what Megatron allocates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conversion.families import FAMILIES
from recipes.planner.activations import layer_activations
from tests.gloo import run_on_gloo
from tests.recipes.planner_ranks import LENGTH, MICRO_BATCH

TOKENS = MICRO_BATCH * LENGTH
# Grouped heads, a feed-forward layer that is no multiple of the hidden size, windows that bind, capped scores.
_SIZES = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": LENGTH, "vocab_size": 512}
_HF: dict[str, dict[str, Any]] = {
    "opt": {"ffn_dim": 320, "word_embed_proj_dim": 128},
    "llama": {},
    "llama ungrouped": {"num_key_value_heads": 4},
    "gemma2": {"head_dim": 48, "sliding_window": 16, "query_pre_attn_scalar": 48, "attn_logit_softcapping": 50.0},
    "qwen3": {"head_dim": 48},
}


def _models() -> dict[str, dict[str, Any]]:
    from transformers import AutoConfig

    made = {}
    for name, changes in _HF.items():
        kind = name.split()[0]
        sizes = {**_SIZES, "num_hidden_layers": 2, "intermediate_size": 320, "num_key_value_heads": 2, **changes}
        config = AutoConfig.for_model(kind, **sizes).to_dict()
        made[name] = FAMILIES[kind].megatron_config(config, tied=False, source=name)
    return made


@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_activations_are_those_that_autograd_keeps(tensor_parallel_size: int, tmp_path: Path) -> None:
    models = _models()
    ranks = run_on_gloo(
        "tests.recipes.planner_ranks:kept_by_a_layer", world_size=tensor_parallel_size, directory=tmp_path / "ranks", models=models
    )
    for kept in ranks:
        for name, model in models.items():
            for precision in ("bf16", "32"):
                counted = layer_activations(
                    model,
                    sequence_length=LENGTH,
                    tensor_parallel_size=tensor_parallel_size,
                    is_half=precision == "bf16",
                    kernels="cpu",
                )
                assert counted.of(TOKENS) == pytest.approx(kept[f"{name} {precision}"], rel=2e-3), (name, precision)  # statistics of norms
