"""The derived numbers of a run: data-parallel size, accumulation, steps, learning rate, parameters, memory, operations.

Pure functions without torch; the plan shows them and the engine uses them, so they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipes.schema import ParallelRecipe, Recipe, ScheduleRecipe


def world_size(parallel: ParallelRecipe) -> int:
    """Number of processes."""
    return parallel.num_nodes * parallel.devices_per_node


def data_parallel_size(parallel: ParallelRecipe) -> int:
    """Number of replicas of the model."""
    return world_size(parallel) // (parallel.tensor_parallel_size * parallel.pipeline_parallel_size)


def accumulation_steps(recipe: Recipe) -> int:
    """Passes of one rank in one optimizer step."""
    return recipe.schedule.global_batch_size // (recipe.schedule.micro_batch_size * data_parallel_size(recipe.parallel))


def tokens_per_step(recipe: Recipe) -> int:
    """Tokens of one optimizer step over all ranks."""
    return recipe.schedule.global_batch_size * recipe.data.sequence_length


def total_steps(recipe: Recipe) -> int:
    """Optimizer steps of the run."""
    if recipe.schedule.max_steps is not None:
        return recipe.schedule.max_steps
    return math.ceil((recipe.schedule.train_tokens or 0) / tokens_per_step(recipe))


def padded_vocab_size(vocab_size: int, multiple: int) -> int:
    """Rows of the vocabulary tables in the engine.

    Megatron pads to 128 * TP.  A multiple that does not depend on TP gives every layout the same shapes, so that a
    checkpoint of one loads in another, and is as fast.
    """
    return -(-vocab_size // multiple) * multiple


def learning_rate(step: int, schedule: ScheduleRecipe, *, steps: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0.

    Linear from 0 over `warmup_steps`, half a cosine down to the minimum, then constant for `constant_steps`.
    """
    if step < schedule.warmup_steps:
        return schedule.learning_rate * step / schedule.warmup_steps
    decay_steps = steps - schedule.warmup_steps - schedule.constant_steps
    done = min(step - schedule.warmup_steps, decay_steps)
    share = 0.5 * (1.0 + math.cos(math.pi * done / decay_steps)) if decay_steps > 0 else 0.0
    return schedule.min_learning_rate + (schedule.learning_rate - schedule.min_learning_rate) * share


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a model by part."""

    body: int
    tables: int  # token table, and the output table where it is a matrix of its own
    positions: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.body + self.tables + self.positions


def count_parameters(model: Mapping[str, Any], *, vocab_size: int) -> ParameterCount:
    """Parameters of an OPT model with `vocab_size` rows.

    Args:
        model: the `config` of `context/model.json`.
    """
    hidden, ffn, layers = model["hidden_size"], model["ffn_hidden_size"], model["num_layers"]
    attention = 4 * hidden * hidden + 4 * hidden
    feed_forward = 2 * hidden * ffn + ffn + hidden
    norms = 2 * 2 * hidden
    tables = 1 if model["share_embeddings_and_output_weights"] else 2
    return ParameterCount(
        body=layers * (attention + feed_forward + norms) + 2 * hidden,
        tables=tables * vocab_size * hidden,
        positions=model["max_position_embeddings"] * hidden,
    )


def flops_per_token(model: Mapping[str, Any], *, vocab_size: int, sequence_length: int) -> float:
    """Floating-point operations of forward and backward per token: 6 per weight used in a product, plus causal attention.

    Source: PaLM (Chowdhery et al. 2022, appendix B), with half the scores because the mask is causal.
    """
    hidden, ffn, layers = model["hidden_size"], model["ffn_hidden_size"], model["num_layers"]
    products = layers * (4 * hidden * hidden + 2 * hidden * ffn) + vocab_size * hidden
    attention = layers * sequence_length * hidden
    return 6.0 * products + 6.0 * attention


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one device."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """All of them, without the runtime's own 2-3 GiB on a GPU."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits


def estimate_memory(recipe: Recipe, model: Mapping[str, Any], *, vocab_size: int) -> MemoryEstimate:
    """Memory of one device of the first pipeline stage.

    Mixed precision keeps 2-byte parameters, 4-byte gradients, and 12 bytes of optimizer state (master copy and two
    moments) that the distributed optimizer spreads over the replicas.  Activations are 26 bytes per token, hidden unit and
    layer in 16 bit without recomputation: the 34 of Korthikanti et al. 2022 (section 4.1, without the attention matrix)
    less the 8 of GELU's input, which ReLU does not keep; autograd's saved tensors count 24 without dropout and 26 with.
    """
    parallel, schedule = recipe.parallel, recipe.schedule
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    count = count_parameters(model, vocab_size=vocab_size)
    held = count.body / tensor / pipeline + count.tables / tensor + count.positions
    half = recipe.precision == "bf16"
    replicas = data_parallel_size(parallel) if parallel.distributed_optimizer else 1
    tokens = schedule.micro_batch_size * recipe.data.sequence_length
    in_flight = pipeline  # one micro batch per stage is alive on the first stage under 1F1B
    per_token_layer = (10 + 16 / tensor) * model["hidden_size"] * (1 if half else 2)
    return MemoryEstimate(
        parameters=held * (2 if half else 4),
        gradients=held * 4,
        optimizer=held * (12 if half else 8) / replicas,
        activations=tokens * per_token_layer * model["num_layers"] / pipeline * in_flight,
        logits=tokens * vocab_size / tensor * ((2 if half else 4) + 8),
    )
