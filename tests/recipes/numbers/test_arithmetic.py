"""The derived numbers of a run, against the published ones and against closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.checkpoints.hf_files import tied_by_config
from conversion.families import FAMILIES
from recipes.numbers import arithmetic
from recipes.planner.parameters import count_parameters
from recipes.rules.schema import ScheduleRecipe
from tests.conversion.tiny_families import CASES, PUBLISHED, tiny_model

OPT_1B = {
    "num_layers": 24,
    "hidden_size": 2048,
    "ffn_hidden_size": 8192,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "share_embeddings_and_output_weights": False,
}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.74),
        ("llama-3.1-8b", 8.03),
        ("mistral-7b", 7.24),
        ("ministral-3-3b", 3.43),
        ("ministral-3-8b", 8.49),
        ("gemma-2-9b", 9.24),
        ("qwen2-7b", 7.62),
        ("smollm3-3b", 3.08),
        ("eurollm-1.7b", 1.66),
        ("olmo-2-7b", 7.30),
        ("olmo-3-7b", 7.30),
        ("apertus-8b", 8.05),
        ("granite-3.3-2b", 2.53),
        ("phi-4", 14.66),
        ("qwen3-8b", 8.19),
        ("qwen3-30b-a3b", 30.53),
        ("gpt-oss-20b", 20.91),  # as its model card has it
    ],
)
def test_parameters_of_published_models(name: str, billions: float) -> None:
    published = PUBLISHED[name]
    tied = tied_by_config(published)
    model = FAMILIES[published["model_type"]].megatron_config(published, tied=tied, source=name)
    assert round(count_parameters(model, vocab_size=model["vocab_size"]).total / 1e9, 2) == billions


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_model(name: str) -> None:
    """To the last one, for every family."""
    hf = tiny_model(name)
    config = hf.config.to_dict()
    tied = bool(hf.config.get_text_config().tie_word_embeddings)
    model = FAMILIES[CASES[name].model_type].megatron_config(config, tied=tied, source=name)
    kept_aside = 2 * 32 if name in ("opt", "roberta", "xlm_roberta") else 0  # the position rows 0 and 1, which the engine does not have
    beside = ("vision_tower", "multi_modal_projector")
    expected = sum(p.numel() for name, p in hf.named_parameters() if not any(part in name for part in beside)) - kept_aside
    assert count_parameters(model, vocab_size=model["vocab_size"]).total == expected


def test_flops_of_gams_are_those_of_a_hand_calculation() -> None:
    # 6 operations for each of the 1.373 B weights in products, and causal attention.
    assert arithmetic.flops_per_token(OPT_1B, vocab_size=80_000, sequence_length=2048) == pytest.approx(8.84e9, rel=0.01)


@pytest.mark.parametrize(("size", "rows"), [(1, 128), (128, 128), (129, 256), (50_265, 50_304), (80_000, 80_000)])
def test_padding(size: int, rows: int) -> None:
    assert arithmetic.padded_vocab_size(size, 128) == rows


@given(
    warmup=st.integers(0, 40),
    decay=st.integers(1, 60),
    constant=st.integers(0, 30),
    highest=st.floats(1e-6, 1e-2),
    lowest_share=st.floats(0.0, 1.0),
)
def test_learning_rate_has_its_closed_form_at_every_step(
    warmup: int, decay: int, constant: int, highest: float, lowest_share: float
) -> None:
    """Written with the other form of the cosine; from 0 upwards, then never upwards again, and constant in the tail and behind it."""
    lowest, steps = highest * lowest_share, warmup + decay + constant
    schedule = ScheduleRecipe(
        global_batch_size=1,
        micro_batch_size=1,
        learning_rate=highest,
        min_learning_rate=lowest,
        warmup_steps=warmup,
        constant_steps=constant,
    )
    rates = [arithmetic.learning_rate(step, schedule, steps=steps) for step in range(steps + 2)]
    for step, rate in enumerate(rates):
        done = min((step - warmup) / decay, 1.0)
        expected = highest * step / warmup if step < warmup else lowest + (highest - lowest) * math.cos(math.pi / 2 * done) ** 2
        assert rate == pytest.approx(expected, rel=1e-9, abs=1e-18)
    assert rates[warmup] == pytest.approx(highest) and (not warmup or rates[0] == 0.0)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in zip(rates[warmup:], rates[warmup + 1 :]))
    assert set(rates[warmup + decay :]) == {rates[-1]}
