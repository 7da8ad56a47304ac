"""Learning rates, and what a model of given shapes computes: operations, widths, windows.  Pure functions without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipes.numbers.schedules import rate_of_step
from recipes.rules.schema import ScheduleRecipe


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


def embedding_learning_rate(step: int, schedule: ScheduleRecipe, *, steps: int) -> float:
    """That of token table and output layer, which goes the way of the others between rates of its own."""
    highest, lowest = schedule.embedding_rates
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
