"""The rules between a model's sizes, the processes that it is spread over, and the batch; and for experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nemo_patches.whole_experts import has_biased_experts
from recipes.numbers import arithmetic
from recipes.numbers.arithmetic import divisors
from recipes.numbers.recomputation import recomputation_problems
from recipes.rules.schema import Recipe

if TYPE_CHECKING:
    from recipes.rules.inputs import RunInputs


def layout_problems(recipe: Recipe, inputs: RunInputs, *, vocab_rows: int) -> list[str]:
    """What is wrong with how a model and its batch are spread over processes.

    Args:
        vocab_rows: rows of the vocabulary tables in the engine.
    """
    problems = _division_problems(recipe, inputs, vocab_rows) + process_problems(recipe)
    problems += _length_problems(recipe, inputs.model)
    problems += _context_problems(recipe, inputs.model) or _sequence_parallel_problems(recipe)
    if recipe.recomputation is not None:
        problems += recomputation_problems(recipe.recomputation, layers_per_stage(recipe, inputs.model))
    return problems


def layers_per_stage(recipe: Recipe, model: Mapping[str, Any]) -> int:
    """Layers of a pipeline stage."""
    layers: int = model["num_layers"]
    return layers // recipe.parallel.pipeline_parallel_size


def _sequence_parallel_problems(recipe: Recipe) -> list[str]:
    """What cannot be cut along the sequence."""
    tensor, context, length = recipe.parallel.tensor_parallel_size, recipe.parallel.context_parallel_size, recipe.data.sequence_length
    if not recipe.parallel.sequence_parallel:
        return []
    if tensor == 1:
        return [
            "parallel.sequence_parallel splits sequences over tensor-parallel ranks, but parallel.tensor_parallel_size is 1;"
            " leave it out, or set tensor_parallel_size to at least 2"
        ]
    if length % (tensor * context):
        sizes = (
            f"tensor_parallel_size ({tensor})" if context == 1 else f"tensor_parallel_size x context_parallel_size ({tensor} x {context})"
        )
        return [
            f"data.sequence_length ({length}) must be a multiple of parallel.{sizes} with parallel.sequence_parallel;"
            f" the nearest {_nearest_multiples(length, tensor if context == 1 else math.lcm(tensor, 2) * context)}"
        ]
    return []


def _division_problems(recipe: Recipe, inputs: RunInputs, vocab_rows: int) -> list[str]:
    """What of the model does not divide."""
    tensor, pipeline, model = recipe.parallel.tensor_parallel_size, recipe.parallel.pipeline_parallel_size, inputs.model
    problems = []
    heads = model["num_attention_heads"]
    groups = model.get("num_query_groups", heads)  # which divide the heads
    divided = {"attention heads" if groups == heads else "key and value heads": groups}
    if "num_moe_experts" not in model:
        divided["hidden units of the feed-forward layer"] = model["ffn_hidden_size"]
    elif not has_biased_experts(model):
        divided["hidden units of an expert"] = model["moe_ffn_hidden_size"]
    for name, size in divided.items():
        if size % tensor:
            problems.append(f"parallel.tensor_parallel_size ({tensor}) does not divide the {size} {name}; {_possible(size, tensor)}")
    multiple = recipe.model.pad_vocabulary_to_multiple_of
    if vocab_rows % tensor:
        problems.append(
            f"parallel.tensor_parallel_size ({tensor}) does not divide the {vocab_rows} rows of the vocabulary padded to a multiple of {multiple};"
            f" set model.pad_vocabulary_to_multiple_of to a multiple of {tensor}, for example {_next_multiple(multiple, tensor)}"
        )
    num_layers = model["num_layers"]
    if num_layers % pipeline:
        problems.append(
            f"parallel.pipeline_parallel_size ({pipeline}) does not divide the {num_layers} layers; {_possible(num_layers, pipeline)}"
        )
    return problems


def _length_problems(recipe: Recipe, model: Mapping[str, Any]) -> list[str]:
    """What keeps a sample from having several documents where its length decides how all of them rotate."""
    length, positions = recipe.data.sequence_length, model.get("longrope_positions", recipe.data.sequence_length)
    if not recipe.data.document_mask or length <= positions:
        return []
    return [
        f"data.document_mask computes rotary positions for each document separately, but the checkpoint {recipe.model.checkpoint} changes them in samples"
        f" of more than {positions} tokens (longrope); set data.sequence_length ({length}) to at most {positions}, or data.document_mask=false"
    ]


def _context_problems(recipe: Recipe, model: Mapping[str, Any]) -> list[str]:
    """What keeps a sample from being cut into pieces."""
    context, length = recipe.parallel.context_parallel_size, recipe.data.sequence_length
    if context == 1:
        return []
    if arithmetic.sees_both_sides(model):
        return [
            f"parallel.context_parallel_size is {context}, but context parallelism is for causal models and this one is"
            " an encoder; set it to 1"
        ]
    if model.get("softmax_type") == "learnable":
        return [
            f"parallel.context_parallel_size is {context}, but the checkpoint {recipe.model.checkpoint} has attention sinks (gpt-oss), which get no"
            " gradient with context parallelism; set it to 1"
        ]
    pieces = 2 * context
    if length < pieces:
        return [
            f"data.sequence_length ({length}) has too few tokens for parallel.context_parallel_size ({context}), which splits every sample"
            f" into 2 x {context} = {pieces} chunks; {_possible_contexts(length)}"
        ]
    if length % pieces:
        return [
            f"data.sequence_length ({length}) must be a multiple of 2 x parallel.context_parallel_size (2 x {context} = {pieces}), the"
            f" chunks that a sample is split into; the nearest {_nearest_multiples(length, pieces)}"
        ]
    return []


def _possible_contexts(length: int) -> str:
    possible = [n for n in divisors(length // 2) if length % (2 * n) == 0] if length > 1 else [1]
    return f"possible sizes are {', '.join(map(str, possible))}" if len(possible) > 1 else "only 1 is possible"


def process_problems(recipe: Recipe) -> list[str]:
    """What does not divide of processes and batch."""
    parallel, schedule = recipe.parallel, recipe.schedule
    sizes = {"tensor_parallel_size": parallel.tensor_parallel_size, "pipeline_parallel_size": parallel.pipeline_parallel_size}
    if parallel.context_parallel_size > 1:
        sizes["context_parallel_size"] = parallel.context_parallel_size
    processes, together = parallel.world_size, parallel.model_parallel_size
    if processes % together:
        return [
            f"{parallel.num_nodes} nodes x {parallel.devices_per_node} devices = {processes} processes are not a multiple of"
            f" {' x '.join(sizes)} ({' x '.join(map(str, sizes.values()))} = {together});"
            f" the nearest {_nearest_multiples(processes, together)}"
        ]
    replicas = parallel.data_parallel_size
    unit, batch = schedule.micro_batch_size * replicas, schedule.global_batch_size
    if not batch % unit:
        return []
    per_replica, left = divmod(batch, replicas)
    micro = "" if left else f"; or a micro_batch_size of {', '.join(map(str, divisors(per_replica)))}"
    return [
        f"schedule.global_batch_size ({batch}) must be a multiple of micro_batch_size x data-parallel size"
        f" ({schedule.micro_batch_size} x {replicas} = {unit}); the nearest {_nearest_multiples(batch, unit)}{micro}"
    ]


def _possible(size: int, asked: int) -> str:
    return f"possible are {', '.join(str(n) for n in divisors(size) if n <= 2 * asked)}"


def _nearest_multiples(value: int, unit: int) -> str:
    below, above = value // unit * unit, _next_multiple(value, unit)
    return f"are {below} and {above}" if below else f"is {above}"


def _next_multiple(value: int, unit: int) -> int:
    return (value // unit + 1) * unit


EXPERT_BALANCE = 0.001
"""Weight of the loss that keeps experts equally busy, as in Qwen 3's config.json (`router_aux_loss_coef`)."""


def expert_balance(recipe: Recipe, model: Mapping[str, Any]) -> float:
    """Weight of that loss in a run: E times the sum over experts of their part of the tokens times their mean share, summed over the layers.

    Source: Fedus et al. 2022 (Switch Transformer), equations 4 to 6, of each micro batch.

    Args:
        model: the `config` of `context/model.json`.
    """
    if "num_moe_experts" not in model:
        return 0.0
    return EXPERT_BALANCE if recipe.model.expert_balance is None else recipe.model.expert_balance


def expert_problems(recipe: Recipe, model: Mapping[str, Any]) -> list[str]:
    """What keeps a model with experts from being trained, or asks for experts of a model that has none."""
    path, tensor = recipe.model.checkpoint, recipe.parallel.tensor_parallel_size
    experts = model.get("num_moe_experts")
    if experts is None:
        if recipe.model.expert_balance is None:
            return []
        return [f"model.expert_balance ({recipe.model.expert_balance:g}) is of experts, but the checkpoint {path} has none; leave it out"]
    problems = []
    if tensor > 1 and not recipe.parallel.sequence_parallel:
        problems.append(
            f"the checkpoint {path} has {experts} experts, which Megatron-core trains over {tensor} tensor-parallel ranks only with"
            " sequence parallelism; set parallel.sequence_parallel=true, or parallel.tensor_parallel_size=1"
        )
    if recipe.lora is not None:
        problems.append(
            f"lora puts adapters on dense layers only, but the checkpoint {path} has {experts} experts; leave out lora, and"
            " choose the trained parameters with freeze"
        )
    return problems
