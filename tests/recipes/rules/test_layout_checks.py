"""Layouts that do not divide, or do not fit the GPU, are refused with what would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recipes.planner.hardware import gpu_of
from recipes.rules.inputs import RunInputs
from tests.recipes.small_inputs import MODEL, checked, problem, small_inputs

OVERRIDES = ("model.checkpoint=nemo", "data.train=[data]")


def _inputs() -> RunInputs:
    return small_inputs(50_000)


def _problem(*overrides: str, inputs: RunInputs | None = None) -> str:
    return problem(inputs or _inputs(), *OVERRIDES, *overrides)


def test_tensor_parallel_size_must_divide_the_heads() -> None:
    assert _problem("parallel.tensor_parallel_size=4", "parallel.devices_per_node=4") == (
        "parallel.tensor_parallel_size (4) does not divide the 6 attention heads; possible are 1, 2, 3, 6"
    )


def test_tensor_parallel_size_must_divide_the_key_and_value_heads() -> None:
    inputs = replace(_inputs(), model={**MODEL, "num_query_groups": 3})
    assert _problem("parallel.tensor_parallel_size=2", inputs=inputs) == (
        "parallel.tensor_parallel_size (2) does not divide the 3 key and value heads; possible are 1, 3"
    )


def test_tensor_parallel_size_must_divide_the_padded_vocabulary() -> None:
    assert _problem("parallel.tensor_parallel_size=3", "parallel.devices_per_node=3") == (
        "parallel.tensor_parallel_size (3) does not divide the 1024 rows of the vocabulary padded to a"
        " multiple of 128; set model.pad_vocabulary_to_multiple_of to a multiple of 3, for example 129"
    )
    padded = "model.pad_vocabulary_to_multiple_of=129"
    checked(_inputs(), *OVERRIDES, "parallel.tensor_parallel_size=3", "parallel.devices_per_node=3", padded)


def test_batch_sizes_must_divide() -> None:
    assert _problem("schedule.global_batch_size=1000", "schedule.micro_batch_size=4", "parallel.num_nodes=32") == (
        "schedule.global_batch_size (1000) must be a multiple of micro_batch_size x data-parallel size"
        " (4 x 32 = 128); the nearest are 896 and 1024"
    )


def test_a_micro_batch_that_does_not_divide_is_told_which_do() -> None:
    assert _problem("schedule.global_batch_size=24", "schedule.micro_batch_size=5", "parallel.num_nodes=2") == (
        "schedule.global_batch_size (24) must be a multiple of micro_batch_size x data-parallel size"
        " (5 x 2 = 10); the nearest are 20 and 30; or a micro_batch_size of 1, 2, 3, 4, 6, 12"
    )


def test_a_batch_below_the_smallest_is_told_that_one() -> None:
    assert _problem("parallel.tensor_parallel_size=1") == (
        "schedule.global_batch_size (8) must be a multiple of micro_batch_size x data-parallel size (8 x 2 = 16); the nearest is 16;"
        " or a micro_batch_size of 1, 2, 4"
    )


def test_a_layout_too_big_for_the_gpu_is_refused_unless_told_to_try() -> None:
    inputs = replace(_inputs(), model={**MODEL, "num_layers": 48, "hidden_size": 6144, "ffn_hidden_size": 24_576})
    on_gpu = ("parallel.gpu=A100-40GB", "precision=bf16")
    message = _problem(*on_gpu, inputs=inputs)
    assert message.startswith("the layout (TP 2 x PP 1 x DP 1, micro batch 8) needs ")
    assert "on each a100-40gb, which has 39.4" in message
    checked(inputs, *OVERRIDES, *on_gpu, "parallel.check_memory=false")
    assert _problem("parallel.gpu=a100") == (
        "parallel.gpu: there is no GPU a100; did you mean a100-80gb? Known are a100-40gb, a100-64gb, a100-80gb, h100-64gb, h100-80gb, h100-94gb, gh200-96gb, h200-141gb, b200-180gb, mi250x-64gb"
    )


def test_a_layout_too_big_for_the_gpu_of_the_machine_is_refused_where_the_recipe_names_none() -> None:
    inputs = replace(_inputs(), model={**MODEL, "num_layers": 5, "hidden_size": 6144, "ffn_hidden_size": 24_576})
    there = gpu_of("NVIDIA GeForce RTX 4090", 24 * 2**30)
    settings = (*OVERRIDES, "precision=bf16", "parallel.tensor_parallel_size=1", "schedule.micro_batch_size=4")
    assert problem(inputs, *settings, visible=there) == (
        "the layout (TP 1 x PP 1 x DP 2, micro batch 4) needs 28.3 GiB on each NVIDIA GeForce RTX 4090, which has 24.0: 25.4 of weights,"
        " gradients and optimizer, 0.4 of activations, 0.0 of logits; one that fits is TP 2 x PP 1 x DP 1, micro batch 8, sequence parallel (22.0 GiB);"
        " parallel.check_memory=false skips this check"
    )
    checked(inputs, *settings, "parallel.check_memory=false", visible=there)
    checked(inputs, *settings, "parallel.gpu=h200-141gb", visible=there)  # the recipe's is the one that counts


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["parallel.tensor_parallel_size=1", "schedule.micro_batch_size=4"],
            "parallel.sequence_parallel splits sequences over tensor-parallel ranks, but parallel.tensor_parallel_size is 1; leave it out, or set"
            " tensor_parallel_size to at least 2",
        ),
        (
            ["parallel.tensor_parallel_size=2", "data.sequence_length=47"],
            "data.sequence_length (47) must be a multiple of parallel.tensor_parallel_size (2) with parallel.sequence_parallel; the nearest are 46"
            " and 48",
        ),
    ],
)
def test_sequences_are_cut_among_ranks_into_equal_parts(overrides: list[str], sentence: str) -> None:
    assert _problem("parallel.sequence_parallel=true", *overrides) == sentence
    checked(_inputs(), *OVERRIDES, "parallel.sequence_parallel=true", "data.sequence_length=48")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["granularity=whole"], "recomputation.granularity is 'whole'; expected one of full, selective"),
        (["method=blocks"], "recomputation.method is 'blocks'; expected one of uniform, block"),
        (["num_layers=0"], "recomputation.num_layers is 0; expected at least 1"),
        (
            ["num_layers=3"],
            "recomputation.num_layers (3) does not divide the 4 layers of a pipeline stage, as the method uniform needs; possible are 1, 2, 4, or"
            " set method=block",
        ),
        (
            ["method=block", "num_layers=5"],
            "recomputation.num_layers (5) is more than the 4 layers of a pipeline stage; at most 4 are possible",
        ),
        (
            ["modules=[mlp]"],
            "recomputation.modules names parts of layers, but the granularity is full; leave it out, or set granularity=selective",
        ),
        (["granularity=selective", "modules=[mlp,layernorm]"], "recomputation.modules names layernorm; known are core_attn, mlp"),
        (
            ["granularity=selective", "method=block", "num_layers=2"],
            "recomputation.method and recomputation.num_layers select whole layers, but the granularity is selective; leave them out, or set granularity=full",
        ),
    ],
)
def test_what_contradicts_itself_of_recomputation_is_refused(overrides: list[str], sentence: str) -> None:
    assert _problem("+recomputation={}", *(f"+recomputation.{override}" for override in overrides)) == sentence


def test_all_of_recomputation_has_a_default() -> None:
    for overrides in ([], ["method=block"], ["method=block", "num_layers=3"], ["num_layers=2"], ["granularity=selective"]):
        checked(_inputs(), *OVERRIDES, "+recomputation={}", *(f"+recomputation.{override}" for override in overrides))


def test_a_sample_must_be_cut_into_equal_pieces() -> None:
    cut = ("parallel.context_parallel_size=2", "parallel.tensor_parallel_size=1", "data.sequence_length=50")
    assert _problem(*cut) == (
        "data.sequence_length (50) must be a multiple of 2 x parallel.context_parallel_size (2 x 2 = 4), the chunks that a sample is split"
        " into; the nearest are 48 and 52"
    )
    checked(_inputs(), *OVERRIDES, *cut[:2], "data.sequence_length=48")


def test_samples_of_an_encoder_are_not_cut() -> None:
    inputs = replace(_inputs(), model={**MODEL, "num_token_types": 1})
    assert _problem("parallel.context_parallel_size=2", "parallel.tensor_parallel_size=1", "data.sequence_length=48", inputs=inputs) == (
        "parallel.context_parallel_size is 2, but context parallelism is for causal models and this one is an encoder; set it to 1"
    )


def test_pieces_of_samples_must_be_cut_into_equal_parts_again() -> None:
    sizes = ("parallel.tensor_parallel_size=3", "parallel.context_parallel_size=2", "parallel.sequence_parallel=true")
    processes = ("parallel.devices_per_node=6", "parallel.num_nodes=1", "model.pad_vocabulary_to_multiple_of=129")
    assert _problem(*sizes, *processes, "data.sequence_length=16") == (
        "data.sequence_length (16) must be a multiple of parallel.tensor_parallel_size x context_parallel_size (3 x 2) with"
        " parallel.sequence_parallel; the nearest are 12 and 24"
    )


def test_a_sample_must_have_enough_tokens_to_be_cut() -> None:
    cut = ("parallel.context_parallel_size=16", "parallel.tensor_parallel_size=1", "parallel.num_nodes=8")
    expected = "has too few tokens for parallel.context_parallel_size (16), which splits every sample into 2 x 16 = 32 chunks; possible sizes are 1, 2, 4"
    assert _problem(*cut, "data.sequence_length=8") == f"data.sequence_length (8) {expected}"
    assert _problem(*cut, "data.sequence_length=1").endswith("only 1 is possible")


def test_all_parallel_sizes_together_must_divide_the_processes() -> None:
    sizes = ("parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2", "parallel.context_parallel_size=4")
    assert _problem(*sizes, "parallel.num_nodes=6", "data.sequence_length=48") == (
        "6 nodes x 2 devices = 12 processes are not a multiple of tensor_parallel_size x pipeline_parallel_size x context_parallel_size"
        " (2 x 2 x 4 = 16); the nearest is 16"
    )
    assert _problem("parallel.context_parallel_size=0") == "parallel.context_parallel_size is 0; expected at least 1"


def test_ranks_that_share_samples_are_no_replicas() -> None:
    cut = ("parallel.tensor_parallel_size=1", "data.sequence_length=48", "schedule.micro_batch_size=8")
    checked(_inputs(), *OVERRIDES, *cut, "parallel.context_parallel_size=2")
    assert "(8 x 2 = 16)" in _problem(*cut)
