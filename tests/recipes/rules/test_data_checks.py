"""Recipes that ask for more or other data than there is, or for another checkpoint, are refused with what would be legal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from common.artifacts import Manifest
from data_prep.megatron.index import index_parts
from recipes.numbers.steps import weights_of
from recipes.rules.base_models import base_model
from recipes.rules.compose import compose_recipe
from recipes.rules.data_checks import pass_warnings
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe
from tests.recipes.small_inputs import checked, problem, small_inputs
from tests.refusals import refused

OVERRIDES = ("model.checkpoint=nemo", "data.train=[it,en]", "schedule.max_steps=10", "schedule.warmup_steps=0")


def _inputs(*tokens: int, **facts: Any) -> RunInputs:
    return small_inputs(*(tokens or (50_000, 20_000)), checkpoint=facts)


def _problem(*overrides: str, inputs: RunInputs | None = None) -> str:
    return problem(inputs or _inputs(), *OVERRIDES, *overrides)


def _checked(*overrides: str, inputs: RunInputs | None = None) -> Recipe:
    return checked(inputs or _inputs(), *OVERRIDES, *overrides)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["data.weights=[1]"], "data.weights has 1 entries for 2 data sets in data.train"),
        (["data.weights=[1,0]"], "data.weights is [1.0, 0.0]; expected numbers above 0"),
        (["data.epochs=[1,2,3]"], "data.epochs has 3 numbers for 2 data sets in data.train; give one for all or one each"),
        (["schedule.epochs=0"], "schedule.epochs is 0; expected a number above 0"),
        (["schedule.train_tokens=1000"], "schedule.max_steps and schedule.train_tokens both set the length of the run; give one of them"),
        (
            ["schedule.max_steps=null"],
            "the length of the run is not set; give schedule.max_steps, schedule.train_tokens or schedule.epochs",
        ),
        (["data.shares.it=1"], "data.shares speak of it; say with data.languages which language each data set is in"),
        (["data.shares={it:0.7,en:0.2}", "data.languages=[it,en]"], "data.shares add up to 0.9; expected 1"),
        (["data.shares={it:0.7,en:0.2,sl:0.1}", "data.languages=[it,en]"], "data.shares has sl, but no data set is in it"),
        (["data.shares={it:1}", "data.languages=[it,en]"], "data.languages has en, which has no share in data.shares"),
        (
            ["schedule.epochs=2", "data.weights=[1,1]"],
            "schedule.epochs trains on all of the data, but data.weights selects parts of it; give one of them",
        ),
        (
            ["freeze=[{frozen: [body], until_epoch: 2}]", "schedule.epochs=2"],
            "freeze[0].until_epoch is 2; expected more than 0 and less than schedule.epochs (2)",
        ),
        (
            ["freeze=[{frozen: [body], until_epoch: 1}]"],
            "freeze[0].until_epoch is 1; expected more than 0 and less than schedule.epochs (not given);"
            " or say freeze.0.until_step=STEPS freeze.0.until_epoch=null",
        ),
        # 390 and 156 windows are 68 batches of 8.
        (
            ["schedule.epochs=1", "schedule.max_steps=69"],
            "the run's 69 steps need more data: data x epochs give 68; set schedule.max_steps=68, or more epochs",
        ),
        # Equal shares of 156 windows of the smaller set are 312 samples.
        (
            ["data.epochs=1", "data.weights=[1,1]", "schedule.max_steps=40"],
            "the run's 40 steps need more data: data x epochs give 39; set schedule.max_steps=39, or more epochs",
        ),
        (
            ["schedule.epochs=1", "schedule.global_batch_size=1000", "schedule.micro_batch_size=1000", "schedule.max_steps=null"],
            "the data has fewer than the 1000 samples of one step; give more data, or a smaller global_batch_size",
        ),
    ],
)
def test_refused_with_what_is_legal(overrides: list[str], sentence: str) -> None:
    assert _problem(*overrides) == sentence


def test_steps_of_epochs_and_what_is_frozen_for_one() -> None:
    recipe = _checked("schedule.epochs=2", "schedule.max_steps=null", "freeze=[{frozen: [body], until_epoch: 1}]")
    assert (recipe.schedule.max_steps, recipe.freeze[0].until_step) == (1092 // 8, -(-546 // 8))
    twice = _checked("schedule.epochs=1", "schedule.max_steps=null", "data.epochs=[1,2]")
    assert twice.schedule.max_steps == (390 + 2 * 156) // 8


def test_pairs_must_fit_and_are_seen_in_passes() -> None:
    facts = {"tokenizer_digest": "xxh3:a", "vocab_size": 1001, "num_tokens": 900, "eos_token_id": 2, "num_pairs": 40, "longest_pair": 131}
    inputs = replace(_inputs(), train=(Manifest(stage="data_prep.question_answers", facts=facts),))
    assert _problem("data.train=[pairs]", inputs=inputs) == (
        "recipe demo_adapt cannot run, 2 problems:\n"
        "  - the data set pairs has a question-answer pair of 131 tokens, which has to fit into one sample; set data.sequence_length to at least 130\n"
        "  - question-answer pairs are trained in epochs; give schedule.epochs"
    )
    facts["longest_pair"] = 129
    recipe = _checked("data.train=[pairs]", "schedule.epochs=2", "schedule.max_steps=null", inputs=inputs)
    assert recipe.schedule.max_steps == 2 * 40 // 8


def _data_set(directory: Path, *documents: list[int]) -> Path:
    directory.mkdir()
    (directory / "text.bin").write_bytes(np.concatenate(documents).astype(np.uint16).tobytes())
    lengths = np.array([len(document) for document in documents], dtype=np.int32)
    (directory / "text.idx").write_bytes(b"".join(map(bytes, index_parts(lengths, np.dtype(np.uint16)))))
    return directory


def test_documents_without_an_end_cannot_be_masked(tmp_path: Path) -> None:
    ended, endless = _data_set(tmp_path / "ended", [5, 6], [7, 2]), _data_set(tmp_path / "endless", [5, 2, 6], [7])
    mask = "data.document_mask=true"
    _checked(mask, f"data.train=[{ended},{ended}]")
    assert _problem(mask, f"data.train=[{ended},{endless}]") == (
        f"data.document_mask ends documents at the end-of-text token (2), but none of the first 100 documents of the data set {endless} ends"
        " with it; make the data with data_prep.to_megatron, or leave the mask out"
    )
    inputs = small_inputs(50_000, data={"eos_token_id": None})
    assert _problem(mask, "data.train=[it]", inputs=inputs) == (
        "data.document_mask ends documents at the end-of-text token, but the data set it was made with a tokenizer that has none; set its"
        " eos_token and make the data again, or leave the mask out"
    )


def test_packed_answers_are_fewer_samples(tmp_path: Path) -> None:
    """Where they do not see each other; steps and epochs count the samples that the lengths of the pairs give."""
    pairs = _data_set(tmp_path / "pairs", *([5] * 30, [6] * 33 + [2]) * 40)
    facts = {"tokenizer_digest": "xxh3:a", "vocab_size": 1001, "num_tokens": 2560, "text_bytes": 9000, "eos_token_id": 2}
    inputs = replace(_inputs(), train=(Manifest(stage="data_prep.question_answers", facts={**facts, "num_pairs": 40, "longest_pair": 64}),))
    options = (f"data.train=[{pairs}]", "schedule.epochs=2", "schedule.max_steps=null")
    for length, mask, steps in ((127, "false", 10), (127, "true", 5), (126, "true", 10)):  # a sample has room for one token more
        recipe = _checked(*options, f"data.sequence_length={length}", f"data.document_mask={mask}", inputs=inputs)
        assert recipe.schedule.max_steps == steps


def test_shares_of_languages_are_divided_by_tokens() -> None:
    recipe = compose_recipe("demo_adapt", [*OVERRIDES, "data.train=[a,b,c]", "data.languages=[it,en,it]", "data.shares={it:0.75,en:0.25}"])
    assert weights_of(recipe.data, _inputs(30_000, 99_000, 10_000).train) == pytest.approx((0.75 * 0.75, 0.25, 0.75 * 0.25))


def test_another_model_is_refused() -> None:
    assert _problem("model.base=opt-1.3b") == (
        "the recipe is for opt-1.3b, but the checkpoint nemo has num_layers 4 instead of 24; hidden_size 96 instead of 2048;"
        " ffn_hidden_size 384 instead of 8192; num_attention_heads 6 instead of 32; num_query_groups None instead of 32;"
        " give that model's checkpoint, or model.base=null to train another model"
    )
    assert "family opt instead of llama" in _problem("model.base=llama-2-7b")
    assert _problem("model.base=opt-13b").startswith("model.base is 'opt-13b'; did you mean opt-1.3b? The published models are opt-1.3b, ")
    family, model = base_model("opt-1.3b", tied=False)
    inputs = replace(_inputs(), family=family, model={**model, "max_position_embeddings": 2048})
    _checked("model.base=opt-1.3b", inputs=inputs)


EXPERTS = {"num_moe_experts": 8, "moe_ffn_hidden_size": 80, "moe_router_topk": 2, "gated_linear_unit": True, "add_bias_linear": False}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["parallel.tensor_parallel_size=2"],
            "the checkpoint nemo has 8 experts, which Megatron-core trains over 2 tensor-parallel ranks only with sequence parallelism;"
            " set parallel.sequence_parallel=true, or parallel.tensor_parallel_size=1",
        ),
        (
            [
                *("parallel.tensor_parallel_size=3", "parallel.devices_per_node=3", "parallel.sequence_parallel=true"),
                *("model.pad_vocabulary_to_multiple_of=384", "data.sequence_length=48"),
            ],
            "parallel.tensor_parallel_size (3) does not divide the 80 hidden units of an expert; possible are 1, 2, 4, 5",
        ),
        (
            ["+lora={rank:8}", "parallel.tensor_parallel_size=1", "parallel.devices_per_node=1"],
            "lora puts adapters on dense layers only, but the checkpoint nemo has 8 experts; leave out lora, and"
            " choose the trained parameters with freeze",
        ),
        (["model.expert_balance=-1"], "model.expert_balance is -1; expected 0 or more"),
    ],
)
def test_experts(overrides: list[str], sentence: str) -> None:
    inputs = replace(_inputs(), family="qwen3_moe", model={**_inputs().model, **EXPERTS})
    assert _problem(*overrides, inputs=inputs) == sentence


def test_a_model_without_experts_has_no_balance_of_them() -> None:
    assert (
        _problem("model.expert_balance=0.01") == "model.expert_balance (0.01) is of experts, but the checkpoint nemo has none; leave it out"
    )


def test_documents_of_samples_whose_length_decides_the_rotations() -> None:
    inputs = replace(_inputs(), family="phi3", model={**_inputs().model, "longrope_positions": 32})
    assert _problem("data.document_mask=true", "data.sequence_length=64", inputs=inputs) == (
        "data.document_mask computes rotary positions for each document separately, but the checkpoint nemo changes them in samples of more than 32"
        " tokens (longrope); set data.sequence_length (64) to at most 32, or data.document_mask=false"
    )
    _checked("data.document_mask=true", "data.sequence_length=32", inputs=inputs)


def test_sinks_and_experts_with_biases() -> None:
    """Of gpt-oss: samples are not cut, and experts are on every tensor-parallel rank, whatever divides them."""
    model = {**_inputs().model, **EXPERTS, "softmax_type": "learnable", "add_bias_linear": True, "moe_ffn_hidden_size": 81}
    inputs = replace(_inputs(), family="gpt_oss", model=model)
    cut = ("parallel.context_parallel_size=2", "parallel.tensor_parallel_size=1")
    assert _problem(*cut, inputs=inputs) == (
        "parallel.context_parallel_size is 2, but the checkpoint nemo has attention sinks (gpt-oss), which get no gradient with context parallelism;"
        " set it to 1"
    )
    _checked("parallel.tensor_parallel_size=2", "parallel.sequence_parallel=true", inputs=inputs)


def test_another_vocabulary_or_transfer_is_refused() -> None:
    assert _problem("model.vocab_size=80000") == (
        "the recipe is for 80,000 tokens, but the checkpoint nemo has 1,001; set model.vocab_size=1001, or make the checkpoint with the"
        " recipe's tokenizer"
    )
    assert _problem("model.method=focus", inputs=_inputs(method="mean")) == (
        "the recipe is for `conversion.transfer --method focus`, but the checkpoint nemo was made with mean; make it so, or set model.method=mean"
    )
    assert _problem("model.output_layer=copied").endswith("was made with none; make it so, or set model.output_layer=null")
    _checked("model.method=focus", "model.output_layer=copied", inputs=_inputs(method="focus", head="copied"))


def test_factors_must_make_the_table(tmp_path: Path) -> None:
    path = tmp_path / "factors.safetensors"
    assert _problem("model.factorised_size=8", f"model.checkpoint={tmp_path}") == (
        "the recipe trains factors of 8 dimensions; give the file of the transfer as model.factors"
    )
    assert _problem(f"model.factors={path}") == f"{path} does not exist; `python -m conversion.transfer --factorised-size N` writes it"
    save_file({"input.coordinates": torch.zeros(1001, 8), "input.primitives": torch.zeros(8, 95)}, path)
    pipeline = ("parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=2")
    assert _problem(f"model.factors={path}", "model.factorised_size=4", "+objective=two_tokens", *pipeline) == (
        "recipe demo_adapt cannot run, 4 problems:\n"
        f"  - the recipe trains factors of 4 dimensions, but {path} has 8\n"
        f"  - {path} gives a table of 1001 x 95, but the checkpoint has 1001 x 96; both have to come from the same transfer\n"
        "  - parallel.pipeline_parallel_size is 2, but model.factors is trained with 1 only\n"
        "  - objective is two_tokens, but model.factors is trained with next_token or masked only"
    )
    save_file({"input.coordinates": torch.zeros(1001, 8), "input.primitives": torch.zeros(8, 96)}, path)
    _checked(f"model.factors={path}")


def test_a_choice_that_does_not_exist_lists_the_others() -> None:
    with refused("there is no procedure 3x3_ls; there are 2_stage, 2x2_ls, lora"):
        compose_recipe("low_resource/llama2", ["procedure=3x3_ls"])
    with refused("the recipe demo_adapt has no choice of objective to replace; add one with +objective=..."):
        compose_recipe("demo_adapt", ["objective=two_tokens"])


def test_absurdly_many_passes_are_warned_of() -> None:
    data = "data.train=[a,b]", "data.weights=[3,1]", "data.sequence_length=64", "schedule.global_batch_size=32"
    inputs = small_inputs(64 * 100 + 1, 64 * 1000 + 1)
    recipe = checked(
        inputs, "model.checkpoint=nemo", *data, "schedule.max_steps=100", "schedule.warmup_steps=0", "schedule.constant_steps=0"
    )
    assert pass_warnings(recipe, inputs.train) == [
        "the run sees the data set a 24 times; after 16 epochs a text teaches little: give it more data or fewer steps, or say with schedule.epochs"
        " that this is meant"
    ]
    assert pass_warnings(replace(recipe, schedule=replace(recipe.schedule, epochs=885.0)), inputs.train) == []


@pytest.mark.parametrize(
    "data, checkpoint, override, expected",
    [
        ({"document_front": [], "tokenizer_front": ["<s>"]}, {}, "data.bos=null", "has nothing in front of each document, but the model's"),
        ({"document_front": ["<s>"]}, {"document_front": []}, "data.bos=null", "has <s> in front of each document, but the model's"),
        ({"document_front": ["<s>"]}, {}, "data.bos=false", "is for data with none in front of each document"),
        ({}, {}, "data.bos=true", "is for data with a beginning-of-text token in front of each document"),
        ({"document_front": [], "tokenizer_front": ["<s>"]}, {}, "data.bos=false", None),
        ({"document_front": ["<s>"], "tokenizer_front": ["<s>"]}, {"document_front": ["<s>"]}, "data.bos=null", None),
    ],
)
def test_documents_that_begin_otherwise_than_evaluation_would(
    data: dict[str, Any], checkpoint: dict[str, Any], override: str, expected: str | None
) -> None:
    inputs, overrides = small_inputs(50_000, 20_000, data=data, checkpoint=checkpoint), (*OVERRIDES, override)
    if expected is None:
        checked(inputs, *overrides)
    else:
        assert expected in problem(inputs, *overrides)


def test_a_stage_that_ends_after_a_pass_can_be_said_in_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """As the sentence of a run that is counted in steps advises; a key that is given twice is told."""
    run = (*OVERRIDES, "+procedure=2_stage", "data.weights=[0.5,0.5]")
    found = problem(_inputs(), *run)
    assert found.endswith("; or say freeze.1.until_step=STEPS freeze.1.until_epoch=null")
    checked(_inputs(), *run, "freeze.1.until_step=5", "freeze.1.until_epoch=null")
    assert compose_recipe("demo_adapt", (*OVERRIDES, "schedule.max_steps=20")).schedule.max_steps == 20
    told = capsys.readouterr().err
    assert told == "note: schedule.max_steps is given twice, as schedule.max_steps=10 and as schedule.max_steps=20; the last one is used\n"
