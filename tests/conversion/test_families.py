from __future__ import annotations

import re
from typing import Any

import pytest
from transformers import OPTConfig

from conversion.families import FAMILIES, family_of


def opt_config(**changes: Any) -> dict[str, Any]:
    return {**OPTConfig().to_dict(), **changes}


def refuse(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        FAMILIES["opt"].megatron_config(config, tied=True, source="models/x")


def test_opt_in_megatrons_words() -> None:
    config = opt_config(num_hidden_layers=24, hidden_size=2048, word_embed_proj_dim=2048, ffn_dim=8192, num_attention_heads=32)
    assert FAMILIES["opt"].megatron_config(config, tied=False, source="models/x") == {
        "num_layers": 24,
        "hidden_size": 2048,
        "ffn_hidden_size": 8192,
        "num_attention_heads": 32,
        "num_query_groups": 32,
        "max_position_embeddings": 2048,
        "vocab_size": 50272,
        "init_method_std": 0.02,
        "layernorm_epsilon": 1e-5,
        "share_embeddings_and_output_weights": False,
    }


@pytest.mark.parametrize(
    ("key", "value", "expected", "otherwise"),
    [
        ("do_layer_norm_before", False, True, "post-LayerNorm models such as opt-350m are not covered, the engine has no such layer"),
        ("enable_bias", False, True, "models without biases, such as Galactica, are not covered"),
        (
            "layer_norm_elementwise_affine",
            False,
            True,
            "models whose norms have no weights, such as Galactica's largest, are not covered",
        ),
        ("_remove_final_layer_norm", True, False, "models without the final norm are not covered"),
        ("activation_function", "gelu", "relu", "OPT models with another activation are not covered"),
    ],
)
def test_variants_of_opt_are_refused_by_name(key: str, value: Any, expected: Any, otherwise: str) -> None:
    refuse(opt_config(**{key: value}), f"models/x has {key} {value!r} in its config.json (expected {expected!r}): {otherwise}")


def test_projected_embeddings_are_refused() -> None:
    refuse(
        opt_config(hidden_size=1024, word_embed_proj_dim=512),
        "word_embed_proj_dim (512) differs from hidden_size (1024) in config.json:"
        " models with projected embeddings such as opt-350m are not covered",
    )


def test_a_config_without_a_size() -> None:
    config = opt_config()
    del config["ffn_dim"]
    refuse(config, "models/x has no ffn_dim in its config.json")


@pytest.mark.parametrize("value", ["many", 0, -3, None])
def test_a_config_with_an_impossible_size(value: Any) -> None:
    refuse(
        opt_config(num_hidden_layers=value),
        f"models/x has a config.json that gives Megatron num_layers {value!r}; expected numbers above 0",
    )


def test_heads_that_do_not_divide() -> None:
    refuse(opt_config(num_attention_heads=7), "models/x has a hidden size of 768 and 7 attention heads in 7 groups, which do not divide")


def test_unknown_model_type() -> None:
    known = ", ".join(FAMILIES)
    with pytest.raises(ValueError, match=f"^{re.escape(f'models/x is of the model type bloom, which is not covered; known are {known}')}$"):
        family_of("bloom", source="models/x")
    with pytest.raises(ValueError, match=re.escape("models/x is of the model type (none), which is not covered")):
        family_of("", source="models/x")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_tables_are_well_formed(family: Any) -> None:
    """Both sides name as many layers, nothing twice."""
    for side in ("hf", "megatron"):
        patterns = [getattr(rule, side) for rule in family.table if getattr(rule, side)]
        assert len(set(patterns)) == len(patterns)
    for rule in family.table:
        assert rule.hf.count("*") == rule.megatron.count("*") <= 1 or not rule.megatron
