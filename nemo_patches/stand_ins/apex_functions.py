"""The functions of apex that Megatron-core calls: norms, and the gradient of a weight added to what has been accumulated."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from nemo_patches.fake_devices.fusion import one_kernel


@one_kernel
def _normed(x: Tensor, weight: Tensor, bias: Tensor, shape: torch.Size, eps: float) -> Tensor:
    return F.layer_norm(x.float(), shape, weight.float(), bias.float(), eps).type_as(x)


@one_kernel
def _gradients_of_norm(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor, shape: torch.Size, eps: float) -> tuple[Tensor, ...]:
    inputs = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
    with torch.enable_grad():
        output = F.layer_norm(inputs[0].float(), shape, inputs[1].float(), inputs[2].float(), eps)
    return torch.autograd.grad(output, inputs, gradient.float())


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """LayerNorm with weight and bias, whose statistics are in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shape: torch.Size, eps: float, memory_efficient: bool = False) -> Tensor:
        """As torch's `layer_norm`: x is of any shape that ends with `shape`, weight and bias are of that shape."""
        ctx.save_for_backward(x, weight, bias)
        ctx.settings = shape, eps
        return _normed(x, weight, bias, shape, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Of input, weight and bias, each in the shape of its own; the gradient is as the input."""
        return (*_gradients_of_norm(*ctx.saved_tensors, gradient, *ctx.settings), None, None, None)


class FastLayerNormFN(torch.autograd.Function):
    """The same by a kernel that knows some widths, which Megatron chooses among."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, eps: float, memory_efficient: bool = False) -> Tensor:
        """As torch's `layer_norm`: (..., hidden_size) of x in that shape, with gamma and beta (hidden_size,)."""
        output: Tensor = FusedLayerNormAffineFunction.forward(ctx, x, gamma, beta, gamma.shape, eps)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """See `FusedLayerNormAffineFunction.backward`."""
        return (*FusedLayerNormAffineFunction.backward(ctx, gradient)[:3], None, None)


@one_kernel
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
        """The product, (..., num_outputs) of x (..., num_inputs) and weight (num_outputs, num_inputs)."""
        ctx.save_for_backward(x, weight)
        ctx.parameter = weight  # what is saved loses the attributes
        return F.linear(x, weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        """Of the input, in the shape of it; the weight's are zeros that keep autograd's hooks going."""
        x, weight = ctx.saved_tensors
        dummy = None
        if weight.requires_grad:
            accumulate_weight_gradient(x, gradient, ctx.parameter.main_grad)
            ctx.parameter.grad_added_to_main_grad = True
            dummy = torch.zeros_like(weight)
        return gradient @ weight.to(gradient.dtype), dummy
