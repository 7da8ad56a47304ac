"""Norms: torch's for layers without TransformerEngine, RMSNorm also with weights that count from 1, norms behind linear layers and over all heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.extensions.transformer_engine import TENorm, TERowParallelLinear
from megatron.core.parallel_state import get_tensor_model_parallel_group, get_tensor_model_parallel_world_size
from megatron.core.tensor_parallel import RowParallelLinear
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
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
        """(..., hidden_size), the last dimension normalised, in the dtype of x."""
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
        """The normalised output, (..., output_size) of (..., num_inputs), and the bias that the layer leaves to its caller."""
        output, bias = super().forward(x)
        return self.post_layernorm(output), bias


class TERowParallelLinearWithNorm(TERowParallelLinear):  # type: ignore[misc]
    """The same of TransformerEngine's modules; NeMo's class leaves the norm at an epsilon of 1e-5, whatever the model has."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.post_layernorm = TENorm(config, output_size, eps=config.layernorm_epsilon)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `RowParallelLinearWithNorm.forward`."""
        output, bias = super().forward(x)
        return self.post_layernorm(output), bias


class NormOfAllHeads(nn.Module):
    """RMSNorm over all queries of a token together, or all its keys, of which each tensor-parallel rank has those of some heads (OLMo 2).

    Megatron-core's norms of queries and keys are over each head for itself.

    Attributes:
        weight: (heads * head_dim,), the heads of this rank.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, *, num_heads: int) -> None:
        super().__init__()
        self.eps, self.width = eps, num_heads * hidden_size
        self.weight = nn.Parameter(torch.ones(self.width // get_tensor_model_parallel_world_size()))
        set_tensor_model_parallel_attributes(self.weight, True, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., heads, head_dim), the heads of this rank, the last two dimensions normalised together."""
        weight = self.weight.view(x.shape[-2:])
        return _NormOverRanks.apply(x, weight, self.width, self.eps)  # type: ignore[no-any-return, no-untyped-call]

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: dict[str, Any] | None = None) -> ShardedStateDict:
        """What Megatron saves: the ranks' weights one after the other."""
        state: ShardedStateDict = make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True), prefix, {"weight": 0}, sharded_offsets
        )
        return state


class _NormOverRanks(torch.autograd.Function):
    """x / rms * w, rms over the last two dimensions of all ranks; for the backward pass it keeps x and one number for each token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, width: int, eps: float) -> Tensor:
        """(..., heads, head_dim) of x in that shape and weight (heads, head_dim)."""
        squares = _sum_over_ranks(x.float().square().sum((-2, -1), keepdim=True))
        inverse = torch.rsqrt(squares / width + eps)
        ctx.save_for_backward(x, weight, inverse)
        ctx.width = width
        return (weight.float() * (x.float() * inverse)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        """Of x (..., heads, head_dim) and weight (heads, head_dim)."""
        x, weight, inverse = ctx.saved_tensors
        quotient = x.float() * inverse
        scaled = gradient.float() * weight.float()
        mean = _sum_over_ranks((scaled * quotient).sum((-2, -1), keepdim=True)) / ctx.width
        of_weight = (gradient.float() * quotient).flatten(0, -3).sum(0)
        return (inverse * (scaled - quotient * mean)).to(x.dtype), of_weight.to(weight.dtype), None, None


def _sum_over_ranks(x: Tensor) -> Tensor:
    if get_tensor_model_parallel_world_size() > 1:
        torch.distributed.all_reduce(x, group=get_tensor_model_parallel_group())
    return x
