"""`recipes.train` with the products of its layers in FP8, by torch alone: what a GPU would gain, for `benchmarks.gpu`; nothing to train a model with.

Each product scales its operands by their largest values (E4M3, gradients E5M2); the output layer and all else stay as they are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

# No layer's matrix is so much higher than wide; an output layer is.
_ROWS_BY_COLUMNS = 8


def scaled(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Values in FP8 that fill its range, rows together in memory, and what to multiply them by to have them back."""
    most = torch.finfo(dtype).max
    unit = values.detach().abs().amax().clamp(min=1e-12) / most  # rounded as the values are, so that both uses of it agree
    return (values / unit).clamp(-most, most).to(dtype).contiguous(), unit.float()


def product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    """(m, k) and (n, k) -> (m, n), the left one in `dtype`."""
    (first, of_first), (second, of_second) = scaled(left, dtype), scaled(right, torch.float8_e4m3fn)
    return torch._scaled_mm(first, second.t(), scale_a=of_first, scale_b=of_second, out_dtype=left.dtype)


class Linear(torch.autograd.Function):
    """A linear layer without bias, forward and backward in FP8."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(rows, weight)
        return product(rows, weight)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        rows, weight = context.saved_tensors
        return product(gradient, weight.t(), torch.float8_e5m2), product(gradient.t(), rows.t(), torch.float8_e5m2)


def put_into_layers() -> None:
    """Give Megatron's layers these products; those of models that are made afterwards, on one device."""
    from nemo_patches.cpu_device import present_cpu_as_device
    from nemo_patches.quiet import quiet_imports

    with quiet_imports():
        present_cpu_as_device()
        from megatron.core.tensor_parallel import layers

    original = layers.linear_with_grad_accumulation_and_async_allreduce

    @functools.wraps(original)  # with what it notes at itself
    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *arguments: Any, **named: Any) -> torch.Tensor:
        if weight.shape[0] > _ROWS_BY_COLUMNS * weight.shape[1]:
            return original(input, weight, bias, *arguments, **named)
        output = Linear.apply(input.flatten(0, -2), weight).unflatten(0, input.shape[:-1])
        return output if bias is None else output + bias

    layers.linear_with_grad_accumulation_and_async_allreduce = linear


if __name__ == "__main__":
    from common import command
    from recipes import train
    from recipes.runs.launch import order_kernels

    order_kernels()
    put_into_layers()
    command.run(train.main)
