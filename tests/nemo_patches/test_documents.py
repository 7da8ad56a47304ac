"""Documents of a sample that do not see each other: all that training makes of them is what it makes of each alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conversion.families import FAMILIES
from tests.conversion.tiny_families import LLAMA3_ROPE, YARN
from tests.gloo import run_on_gloo

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 301,
}
CAPS = {"query_pre_attn_scalar": 10, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
TWO_ROTATIONS = {"rope_theta": 1000.0, "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}
HF: dict[str, dict[str, Any]] = {
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "llama": {"rope_scaling": LLAMA3_ROPE, "rope_theta": 500.0},
    "mistral": {"sliding_window": 8},
    "gemma2": {"head_dim": 12, "sliding_window": 8, **CAPS},
    "gemma3_text": {"head_dim": 12, "sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 10, **TWO_ROTATIONS},
    "qwen2": {},
    "qwen3": {"head_dim": 12},
    "smollm3": {"no_rope_layers": [0, 1], "pad_token_id": 1},
    "olmo2": {"head_dim": 12},
    "olmo3": {"rope_theta": 100.0, "rope_scaling": YARN, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "apertus": {"head_dim": 12, "pad_token_id": 1},
    "phi3": {"partial_rotary_factor": 0.5, "pad_token_id": 1},
    "granite": {"embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.6, "logits_scaling": 0.4},
    "ministral3": {"head_dim": 12, "rope_theta": 100.0, "rope_scaling": {**YARN, "llama_4_scaling_beta": 0.7}},
    "opt, two tokens": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "mistral, adapters": {"sliding_window": 8},
}
TOLERANCE = 1e-5  # in 32 bit, of logits of about 1 and of gradients by the largest of their tensor


def models() -> dict[str, dict[str, Any]]:
    """Megatron's configurations of tiny models."""
    from transformers import AutoConfig

    made = {}
    for name, changes in HF.items():
        kind = name.split(",")[0]
        config = AutoConfig.for_model(kind, **{**SIZES, **changes}).to_dict()
        made[name] = FAMILIES[kind].megatron_config(config, tied=kind.startswith("gemma"), source=name)
    return made


def require_same_as_alone(found: dict[str, dict[str, float]]) -> None:
    """Compare what a rank has seen."""
    for case, values in found.items():
        assert values["number of gradients"] > 5 and values["spread"] > 0.05, case
        assert values["logits"] < TOLERANCE, (case, values)
        assert values["loss"] < TOLERANCE, (case, values)
        assert values["gradients"] < TOLERANCE, (case, values)
        assert values["singly"] < TOLERANCE, (case, values)


def test_documents_of_a_sample_are_as_if_alone_in_every_family(tmp_path: Path) -> None:
    """Logits, losses and gradients, two samples at once; and a model that sees all of a sample would be found out."""
    [found] = run_on_gloo(
        "tests.nemo_patches.document_ranks:same_as_alone", world_size=1, directory=tmp_path, models=models(), layouts=[[1, 1]]
    )
    require_same_as_alone(found)
    assert len(found) == len(HF)
    assert all(values["without mask"] > 1e-2 for values in found.values())


def test_no_tensor_has_a_number_for_each_pair_of_tokens(tmp_path: Path) -> None:
    """Of long and short documents, with windows and capped scores, forward and backward; and a kernel that takes a mask is given no groups."""
    [seen] = run_on_gloo("tests.nemo_patches.document_ranks:scores_of_documents", world_size=1, directory=tmp_path)
    for name, found in seen.items():
        assert found["output"] < 1e-5, name
        assert found["gradients"] < 1e-4, name
        assert found["largest"] < 0.5, name
        assert not found["mask of groups"], name


@pytest.mark.slow
def test_documents_are_as_if_alone_over_a_tensor_and_over_a_pipeline(tmp_path: Path) -> None:
    """Also where a stage gets no tokens."""
    ranks = run_on_gloo(
        "tests.nemo_patches.document_ranks:same_as_alone",
        world_size=2,
        directory=tmp_path,
        models={name: model for name, model in models().items() if name not in ("qwen2", "mistral")},
        layouts=[[2, 1], [1, 2]],
    )
    for found in ranks:
        assert len(found) == (len(HF) - 2) * 2
        require_same_as_alone(found)
