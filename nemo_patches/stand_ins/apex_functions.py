"""The functions of apex that Megatron-core calls: norms, and the gradient of a weight added to what has been accumulated."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """LayerNorm with weight and bias, whose statistics are in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shape: torch.Size, eps: float, memory_efficient: bool = False) -> Tensor:
        """See torch's `layer_norm`."""
        ctx.save_for_backward(x, weight, bias)
        ctx.settings = shape, eps
        return F.layer_norm(x.float(), shape, weight.float(), bias.float(), eps).type_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Of input, weight and bias."""
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            x, weight, bias = (tensor.float() for tensor in inputs)
            output = F.layer_norm(x, ctx.settings[0], weight, bias, ctx.settings[1])
        return (*torch.autograd.grad(output, inputs, gradient.float()), None, None, None)


class FastLayerNormFN(torch.autograd.Function):
    """The same by a kernel that knows some widths, which Megatron chooses among."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, memory_efficient: bool = False) -> Tensor:
        """See torch's `layer_norm`."""
        output: Tensor = FusedLayerNormAffineFunction.forward(ctx, x, gamma, beta, gamma.shape, eps)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Of input, weight and bias."""
        return (*FusedLayerNormAffineFunction.backward(ctx, gradient)[:3], None, None)


def accumulate_weight_gradient(inputs: Tensor, gradient: Tensor, main_grad: Tensor) -> None:
    """Add the gradient of a linear layer's weight to what has been accumulated, in the precision of that.

    Args:
        inputs: (..., inputs)
        gradient: (..., outputs), of the output.
        main_grad: (outputs, inputs)
    """
    main_grad.add_(gradient.flatten(0, -2).T.to(main_grad.dtype) @ inputs.flatten(0, -2).to(main_grad.dtype))


class AccumulatingLinear(torch.autograd.Function):
    """x @ weight.T, whose backward pass adds to `weight.main_grad` and tells Megatron so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(x, weight)
        ctx.parameter = weight  # what is saved loses the attributes
        return F.linear(x, weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        """Of the input; the weight's is a tensor without values that keeps autograd's hooks going."""
        x, weight = ctx.saved_tensors
        dummy = None
        if weight.requires_grad:
            accumulate_weight_gradient(x, gradient, ctx.parameter.main_grad)
            ctx.parameter.grad_added_to_main_grad = True
            dummy = torch.zeros_like(weight)
        return gradient @ weight.to(gradient.dtype), dummy
