"""Figures that the GaMS paper and its published models give, and that need no weights."""

from __future__ import annotations

import math

import pytest

from conversion.families.mapping import expand, sizes_of
from conversion.families.opt import OPT

# Zhang et al. 2022, table 1.
OPT_1_3B = {"num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8192, "max_position_embeddings": 2048}


def num_parameters(vocab_size: int, *, tied: bool) -> int:
    config = {**OPT_1_3B, "model_type": "opt", "vocab_size": vocab_size, "tie_word_embeddings": tied}
    sizes = sizes_of(OPT.megatron_config(config, tied=tied, source="OPT-1.3B"))
    total = 0
    for rule in OPT.table:
        if tied and rule.hf == "lm_head.weight":
            continue
        for layer in range(OPT_1_3B["num_hidden_layers"]) if "*" in rule.hf else (None,):
            total += sum(math.prod(shape) for _, shape in zip(expand(rule.hf, layer), rule.hf_shapes(sizes), strict=True))
    return total


@pytest.mark.parametrize(
    ("vocab_size", "tied", "billions", "gigabytes"),
    [(50_272, True, 1.316, None), (50_272, False, 1.419, 5.67), (80_000, False, 1.540, 6.16)],
    ids=["OPT-1.3B", "OPT_GaMS", "GaMS-1B"],
)
def test_parameters_of_gams(vocab_size: int, tied: bool, billions: float, gigabytes: float | None) -> None:
    """Untied models of 50,272 and 80,000 tokens are as large as the float32 files that the authors published (5.67 and 6.16 GB)."""
    found = num_parameters(vocab_size, tied=tied)
    assert found / 1e9 == pytest.approx(billions, abs=0.0006)
    if gigabytes is not None:
        assert 4 * found / 1e9 == pytest.approx(gigabytes, abs=0.006)
