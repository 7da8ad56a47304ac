"""Granite's multipliers, where Megatron-core has none: of the embeddings, of what a layer adds to the residual stream, and of the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from torch import Tensor, nn


def add_times(factor: float) -> Callable[..., Callable[..., Tensor]]:
    """Megatron's addition to the residual stream, (tokens, samples, hidden_size), of a part that is multiplied first.

    Megatron takes functions alone for it.
    """

    def get_scaled_add(training: bool, fused: bool) -> Callable[..., Tensor]:
        add: Callable[..., Tensor] = get_bias_dropout_add(training, fused)

        def scaled_add(x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, dropout: float) -> Tensor:
            x, bias = x_with_bias
            return add((x * factor, None if bias is None else bias * factor), residual, dropout)

        return scaled_add

    return get_scaled_add


def multiply(module: nn.Module, inputs: Any, output: Tensor, *, factor: float) -> Tensor:
    """What a module gives, of any shape, times a number."""
    return output * factor


def divide_logits(module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor | None], *, divisor: float) -> tuple[Tensor, Tensor | None]:
    """The logits (tokens, samples, num_rows) of an output layer through a number, in place: they are the largest tensor of a step."""
    logits, bias = output
    return logits.div_(divisor), bias
