"""Sequence parallelism: what is cut among ranks along the sequence gives the losses and gradients of what each had whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conversion.families import FAMILIES
from tests.conversion.tiny_families import GEMMA3
from tests.gloo import run_on_gloo
from tests.nemo_patches.test_documents import SIZES, models

TOLERANCE = 1e-5  # in 32 bit, of losses of about 1 to 10 and of gradients by the largest of their tensor


def families() -> dict[str, dict[str, Any]]:
    """A tiny decoder of each."""
    from transformers import AutoConfig

    gemma3 = AutoConfig.for_model("gemma3_text", **{**SIZES, **GEMMA3}).to_dict()
    found = {name: model for name, model in models().items() if "," not in name}
    return {**found, "gemma3_text": FAMILIES["gemma3_text"].megatron_config(gemma3, tied=True, source="gemma3_text")}


def particular_models() -> dict[str, dict[str, Any]]:
    """Every family, and what is particular to runs of this project."""
    plain = families()
    tied = {name: {**plain[name], "share_embeddings_and_output_weights": True} for name in ("opt", "llama", "gemma2")}
    return plain | {
        "opt, two tokens, tied": tied["opt"],
        "gemma2, two tokens, adapters": plain["gemma2"],
        "opt, adapters, frozen table": plain["opt"],
        "qwen3, adapters, documents": plain["qwen3"],
        "olmo3, adapters, documents": plain["olmo3"],
        "apertus, adapters": plain["apertus"],
        "opt, documents, two tokens": plain["opt"],
        "gemma2, documents": plain["gemma2"],
        "gemma3_text, documents": plain["gemma3_text"],
        "opt, factorised": tied["opt"],
        "llama, factorised": tied["llama"],
    }


def require_same(found: dict[str, dict[str, float]]) -> None:
    for case, values in found.items():
        assert values["spread"] > 0.05 and values["number of gradients"] == values["number of parameters that train"] > 5, (case, values)
        assert all(values[key] < TOLERANCE for key in ("losses", "gradients", "norm")), (case, values)


@pytest.mark.slow
def test_losses_gradients_and_their_norm_are_those_of_whole_sequences_in_every_family(tmp_path: Path) -> None:
    """With adapters, two heads, tied, factorised and frozen tables, learned positions, and documents that do not see each other."""
    cases = particular_models()
    function = "tests.nemo_patches.sequence_ranks:with_and_without_sequence_parallelism"
    ranks = run_on_gloo(function, world_size=2, directory=tmp_path, models=cases, layouts=[[2, 1]])
    for found in ranks:
        assert len(found) == len(cases)
        require_same(found)


@pytest.mark.long
def test_losses_gradients_and_their_norm_are_those_of_whole_sequences_over_two_stages(tmp_path: Path) -> None:
    """Stages send each other parts of sequences."""
    names = ("gemma2", "opt, documents, two tokens", "qwen3, adapters, documents", "opt, two tokens, tied")
    cases = {name: model for name, model in particular_models().items() if name in names}
    function = "tests.nemo_patches.sequence_ranks:with_and_without_sequence_parallelism"
    arguments: dict[str, Any] = {"models": cases, "layouts": [[2, 2]], "tensor_parallel_size": 2}
    ranks = run_on_gloo(function, world_size=4, directory=tmp_path, **arguments)
    for found in ranks:
        assert len(found) == len(names)
        require_same(found)


def test_every_rank_and_every_part_of_a_layer_drops_out_by_numbers_of_its_own(tmp_path: Path) -> None:
    """Attention too, which Megatron has draw from the state that all layers are drawing from then."""
    plain = models()
    cases = {"opt, dropout": plain["opt"], "gemma2, adapters, dropout": plain["gemma2"], "llama, documents, dropout": plain["llama"]}
    first, second = run_on_gloo(
        "tests.nemo_patches.sequence_ranks:draws",
        world_size=2,
        directory=tmp_path,
        models=cases,
    )
    for case in cases:
        assert len(first[case]) == len(second[case]) >= 2 * 3, "attention, and behind both parts of two layers"
        assert len(set(first[case]) | set(second[case])) == 2 * len(first[case]), case
