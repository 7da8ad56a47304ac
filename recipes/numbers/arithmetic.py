"""The derived numbers of a run: data-parallel size, accumulation, steps, learning rate, operations.

Pure functions without torch; the plan shows them and the engine uses them, so they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipes.numbers.batches import batches_of
from recipes.numbers.schedules import rate_of_step
from recipes.rules.schema import ParallelRecipe, Recipe, RunRecipe, ScheduleRecipe


def world_size(parallel: ParallelRecipe) -> int:
    """Number of processes."""
    return parallel.num_nodes * parallel.devices_per_node


def data_parallel_size(parallel: ParallelRecipe) -> int:
    """Number of replicas of the model."""
    return world_size(parallel) // model_parallel_size(parallel)


def model_parallel_size(parallel: ParallelRecipe) -> int:
    """Processes of one replica of the model, which work on the same samples."""
    return parallel.tensor_parallel_size * parallel.context_parallel_size * parallel.pipeline_parallel_size


def accumulation_steps(recipe: Recipe) -> int:
    """Passes of one rank in one optimizer step, of a full batch."""
    return recipe.schedule.global_batch_size // (recipe.schedule.micro_batch_size * data_parallel_size(recipe.parallel))


def tokens_per_step(recipe: Recipe) -> int:
    """Tokens of one optimizer step over all ranks, of a full batch."""
    return recipe.schedule.global_batch_size * recipe.data.sequence_length


def total_steps(recipe: Recipe) -> int:
    """Optimizer steps of the run: as many whole ones as its tokens fill.

    Raises:
        ValueError: if the recipe gives epochs: then the data decides, and `recipes.rules.checks.check_run` gives the recipe with its steps.
    """
    schedule = recipe.schedule
    if schedule.max_steps is not None:
        return schedule.max_steps
    if schedule.train_tokens is None:
        raise ValueError(f"the steps of recipe {recipe.name} follow from its data; take the recipe that check_run gives")
    return batches_of(schedule).whole_steps(schedule.train_tokens // recipe.data.sequence_length)


def steps_between_saves(run: RunRecipe, *, step_seconds: float) -> int:
    """Steps from one checkpoint to the next at a speed, by number or by time, whichever comes first."""
    if run.checkpoint_every_minutes is None:
        return run.checkpoint_every_steps
    return min(run.checkpoint_every_steps, math.ceil(run.checkpoint_every_minutes * 60 / step_seconds))


def run_samples(recipe: Recipe) -> int:
    """Samples of the whole run over all ranks."""
    return batches_of(recipe.schedule).samples(total_steps(recipe))


def run_tokens(recipe: Recipe) -> int:
    """Tokens of the whole run over all ranks."""
    return run_samples(recipe) * recipe.data.sequence_length


def steps_of_full_batches(recipe: Recipe, first_step: int, last_step: int) -> float:
    """How many steps of a full batch see as many samples as those from one step to another."""
    batches = batches_of(recipe.schedule)
    return (batches.samples(last_step) - batches.samples(first_step)) / recipe.schedule.global_batch_size


def validation_steps(recipe: Recipe) -> int | None:
    """After how many steps held-out text is measured: as the recipe says, else as often as a checkpoint is saved; None without such text."""
    if not recipe.data.validation:
        return None
    return recipe.run.validate_every_steps or recipe.run.checkpoint_every_steps


def padded_vocab_size(vocab_size: int, multiple: int) -> int:
    """Rows of the vocabulary tables in the engine.

    Megatron pads to 128 * TP.  A multiple that does not depend on TP gives every layout the same shapes, so that a
    checkpoint of one loads in another, and is as fast.
    """
    return -(-vocab_size // multiple) * multiple


def learning_rate(step: int, schedule: ScheduleRecipe, *, steps: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0.

    Linear from 0 over `warmup_steps`, down to the minimum as `decay_style` says, then constant for `constant_steps`.
    """
    return rate_of_step(step, schedule, steps=steps, highest=schedule.learning_rate, lowest=schedule.min_learning_rate)


def embedding_rates(schedule: ScheduleRecipe) -> tuple[float, float]:
    """The highest and the lowest learning rate of token table and output layer."""
    highest, lowest = schedule.embedding_learning_rate, schedule.embedding_min_learning_rate
    return schedule.learning_rate if highest is None else highest, schedule.min_learning_rate if lowest is None else lowest


def embedding_learning_rate(step: int, schedule: ScheduleRecipe, *, steps: int) -> float:
    """That of token table and output layer, which goes the way of the others between rates of its own."""
    highest, lowest = embedding_rates(schedule)
    return rate_of_step(step, schedule, steps=steps, highest=highest, lowest=lowest)


def divisors(number: int) -> list[int]:
    """All divisors, the smallest first."""
    return [n for n in range(1, number + 1) if number % n == 0]


@dataclass(frozen=True)
class LayerShape:
    """Widths of a layer, from the `config` of `context/model.json`; what that does not say has Megatron's default."""

    hidden: int
    attention: int  # of the output of all heads
    qkv: int  # of the fused projection
    ffn: int  # of experts: of all that a token goes through
    is_gated: bool

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> LayerShape:
        """The shape that a configuration asks for."""
        heads = model["num_attention_heads"]
        groups = model.get("num_query_groups", heads)
        head_dim = model.get("kv_channels", model["hidden_size"] // heads)
        is_gated = model.get("gated_linear_unit", False)
        ffn = model["ffn_hidden_size"]
        if "num_moe_experts" in model:
            ffn = model["moe_router_topk"] * model["moe_ffn_hidden_size"]
        return cls(model["hidden_size"], heads * head_dim, (heads + 2 * groups) * head_dim, ffn, is_gated)

    @property
    def ffn_input(self) -> int:
        """Width of what the first linear layer of the feed-forward part gives."""
        return self.ffn * (2 if self.is_gated else 1)

    @property
    def products(self) -> int:
        """Weights of the linear layers."""
        return self.hidden * (self.qkv + self.attention + self.ffn_input + self.ffn)


def sees_both_sides(model: Mapping[str, Any]) -> bool:
    """Whether a model is an encoder: its tokens see those behind them, and masked ones are predicted (the `config` of `context/model.json`)."""
    return "num_token_types" in model


def visible_share(model: Mapping[str, Any], sequence_length: int, *, block: int = 0) -> float:
    """What the layers' windows leave of the scores under a causal mask, on average over the layers.

    Args:
        block: queries that are given their keys together, where a kernel takes a window so; 0: each has its own.
    """
    window = model.get("window_size")
    if window is None or sequence_length <= window[0] + 1:
        return 1.0
    seen, scores = window[0] + 1, sequence_length**2 / 2
    pairs = min(sequence_length * (seen + block), scores) if block else seen * sequence_length - seen**2 / 2
    return 1 - windowed_share(model, sequence_length) * (1 - pairs / scores)


def windowed_share(model: Mapping[str, Any], sequence_length: int) -> float:
    """The part of the layers whose queries do not see all tokens of a sample before them."""
    window, num_layers, every = model.get("window_size"), model["num_layers"], model.get("window_attn_skip_freq")
    if window is None or sequence_length <= window[0] + 1:
        return 0.0
    if isinstance(every, int):
        return 1 - num_layers // every / num_layers
    return 1.0 if every is None else sum(map(bool, every)) / num_layers


def rotating_share(model: Mapping[str, Any]) -> float:
    """The part of the layers that rotate queries and keys, of a model with rotary positions (SmolLM3 leaves some as they are)."""
    return 1 - sum(model.get("no_rope_freq", ())) / model["num_layers"]


def flops_per_token(
    model: Mapping[str, Any], *, vocab_size: int, sequence_length: int, factorised_size: int = 0, predicted_share: float = 1.0
) -> float:
    """Floating-point operations of forward and backward per token: 6 per weight used in a product, plus attention.

    Source: PaLM (Chowdhery et al. 2022, appendix B), with half the scores where the mask is causal, and of these what windows show.
    An encoder's head is counted with its dense layer, which is computed for every token.

    Args:
        predicted_share: of the tokens that the head computes.
        factorised_size: of a table that is trained as factors, which the head multiplies with one after the other; 0 where it is one matrix.
    """
    shape = LayerShape.of(model)
    head = (vocab_size + shape.hidden) * factorised_size if factorised_size else vocab_size * shape.hidden
    both_sides = sees_both_sides(model)
    products = model["num_layers"] * shape.products + head * predicted_share + (shape.hidden**2 if both_sides else 0)
    attention = model["num_layers"] * sequence_length * shape.attention * (2 if both_sides else visible_share(model, sequence_length))
    return 6.0 * products + 6.0 * attention
