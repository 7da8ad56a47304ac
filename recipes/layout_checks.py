"""The rules between a model's sizes, the processes that it is spread over, and the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recipes import arithmetic
from recipes.planner.ranking import divisors
from recipes.schema import Recipe

if TYPE_CHECKING:
    from recipes.checks import RunInputs


def layout_problems(recipe: Recipe, inputs: RunInputs, *, vocab_rows: int) -> list[str]:
    """What is wrong with how a model and its batch are spread over processes.

    Args:
        vocab_rows: rows of the vocabulary tables in the engine.
    """
    return _division_problems(recipe, inputs, vocab_rows) + _process_problems(recipe)


def _division_problems(recipe: Recipe, inputs: RunInputs, vocab_rows: int) -> list[str]:
    """What of the model does not divide."""
    tensor, pipeline, model = recipe.parallel.tensor_parallel_size, recipe.parallel.pipeline_parallel_size, inputs.model
    problems = []
    heads = model["num_attention_heads"]
    groups = model.get("num_query_groups", heads)  # which divide the heads
    for name, size in (
        ("attention heads" if groups == heads else "key and value heads", groups),
        ("hidden units of the feed-forward layer", model["ffn_hidden_size"]),
    ):
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


def _process_problems(recipe: Recipe) -> list[str]:
    """What does not divide of processes and batch."""
    parallel, schedule = recipe.parallel, recipe.schedule
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    processes = arithmetic.world_size(parallel)
    if processes % (tensor * pipeline):
        return [
            f"{parallel.num_nodes} nodes x {parallel.devices_per_node} devices = {processes} processes are no multiple of"
            f" tensor_parallel_size x pipeline_parallel_size ({tensor} x {pipeline} = {tensor * pipeline});"
            f" the nearest {_nearest_multiples(processes, tensor * pipeline)}"
        ]
    replicas = arithmetic.data_parallel_size(parallel)
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
