"""xIELU (Huang and Schlag 2024), the activation of Apertus: a parabola above zero, an exponential below, whose slopes each layer learns."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

BETA = 0.5  # slope at zero
EPS = -1e-6  # up to which the exponential is computed; transformers keeps both as numbers of the checkpoint
_START = 0.8  # of both learned slopes


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor) -> Tensor:
    """The activation of x, of any shape; alpha_p and alpha_n are (1,), as they are learned: before softplus."""
    return _XIELU.apply(x, F.softplus(alpha_p), BETA + F.softplus(alpha_n))  # type: ignore[no-any-return, no-untyped-call]


class _XIELU(torch.autograd.Function):
    """The activation for positive slopes; it keeps its input alone, where autograd would keep every intermediate result.

    Source: Huang and Schlag 2024, with the bound of transformers' `XIELUActivation`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, above: Tensor, below: Tensor) -> Tensor:
        """Of x, of any shape, and the slopes above and below zero, (1,) each."""
        ctx.save_for_backward(x, above, below)
        return torch.where(x > 0, above * x * x, _exponential(x) * below) + BETA * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Of x, in the shape of it, and of both slopes, (1,) each."""
        x, above, below = ctx.saved_tensors
        slope = torch.where(x > 0, 2 * above * x, torch.where(x < EPS, torch.expm1(x), -1.0) * below) + BETA
        exact = torch.promote_types(x.dtype, torch.float32)  # of sums over all features of all tokens
        of_above = torch.where(x > 0, gradient * x * x, 0.0).sum(dtype=exact)
        of_below = torch.where(x > 0, 0.0, gradient * _exponential(x)).sum(dtype=exact)
        return gradient * slope, of_above.to(above.dtype)[None], of_below.to(below.dtype)[None]


def _exponential(x: Tensor) -> Tensor:
    return torch.expm1(x.clamp(max=EPS)) - x


class XIELU(MegatronModule):  # type: ignore[misc]
    """The activation of one layer.

    Attributes:
        alpha_p, alpha_n: (1,), alike on all tensor-parallel ranks, each of which sees a part of the features.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config=config)
        self.alpha_p = nn.Parameter(_before_softplus(_START))
        self.alpha_n = nn.Parameter(_before_softplus(_START - BETA))

    def forward(self, x: Tensor) -> Tensor:
        """(..., features) activated, the features of this rank."""
        # Each rank's part of a gradient is added up where it goes into the parameter.
        return xielu(x, *map(copy_to_tensor_model_parallel_region, (self.alpha_p, self.alpha_n)))


def _before_softplus(slope: float) -> Tensor:
    return torch.tensor([slope]).expm1().log()
