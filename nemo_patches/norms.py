"""Norms: torch's for layers without TransformerEngine, RMSNorm also with weights that count from 1, and norms behind linear layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.extensions.transformer_engine import TENorm, TERowParallelLinear
from megatron.core.tensor_parallel import RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, which Megatron-core's wrapper of it refuses to sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            sum_over_sequence(parameter, config.sequence_parallel)


class RMSNorm(nn.Module):
    """x / rms(x) * w, or * (1 + w) where the configuration says that weights are centred on zero (Zhang and Sennrich 2019).

    Megatron-core's wrapper of torch's norm refuses the second form and sequence parallelism.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__()
        self.eps, self.centred_on_zero = eps, config.layernorm_zero_centered_gamma
        self.weight = nn.Parameter(torch.zeros(hidden_size) if self.centred_on_zero else torch.ones(hidden_size))
        sum_over_sequence(self.weight, config.sequence_parallel)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if not self.centred_on_zero:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.rms_norm(x.float(), self.weight.shape, 1.0 + self.weight.float(), self.eps).type_as(x)


def sum_over_sequence(parameter: nn.Parameter, is_needed: bool) -> None:
    """Have Megatron sum a parameter's gradients over tensor-parallel ranks, each of which has it whole and sees a part of the sequence."""
    parameter.sequence_parallel = is_needed  # type: ignore[attr-defined]


class RowParallelLinearWithNorm(RowParallelLinear):
    """A linear layer whose whole output is normalised: Gemma 2's norms before the residual stream.

    The tensor names are those of NeMo's `TERowParallelLinearLayerNorm`.
    """

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.post_layernorm = RMSNorm(config, output_size, eps=config.layernorm_epsilon)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The normalised output, and the bias that the layer leaves to its caller."""
        output, bias = super().forward(x)
        return self.post_layernorm(output), bias


class TERowParallelLinearWithNorm(TERowParallelLinear):  # type: ignore[misc]
    """The same of TransformerEngine's modules; NeMo's class leaves the norm at an epsilon of 1e-5, whatever the model has."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.post_layernorm = TENorm(config, output_size, eps=config.layernorm_epsilon)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The normalised output, and the bias that the layer leaves to its caller."""
        output, bias = super().forward(x)
        return self.post_layernorm(output), bias
