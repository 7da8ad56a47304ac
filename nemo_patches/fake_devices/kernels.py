"""Kernels that GPUs alone have, chosen as torch chooses: what they keep and give back."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from nemo_patches.fake_devices.world import on_gpu, simulated

_aten = torch.ops.aten
_RMS_NORM, _SDPA, _DROPOUT = torch.rms_norm, F.scaled_dot_product_attention, torch.dropout


class _RmsNorm(torch.autograd.Function):
    """A GPU's one kernel, which keeps its input as it came and a 32-bit number per row; what C++ takes for "meta" would be taken apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, num_dims: int) -> Tensor:
        """(..., hidden_size) as x, normed over its last `num_dims` dimensions, which are those of the weight."""
        rows = x.new_empty((*x.shape[: x.dim() - num_dims], *([1] * num_dims)), dtype=torch.float32)
        ctx.save_for_backward(x, weight, rows)
        return x.new_empty(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Of x and weight, each in the shape of its own; the gradient is as x."""
        x, weight, _ = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[:2]
        return x.new_empty(x.shape) if of_x else None, weight.new_empty(weight.shape) if of_weight else None, None


def rms_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """As torch 2.13 chooses on a GPU (`layer_norm.cpp`): one kernel, unless input and weight differ in their precision.

    Args:
        x: of any shape that ends with `shape`, and so is the result; the weight is of that shape.
    """
    if not on_gpu(x) or (weight is not None and weight.dtype is not x.dtype):
        return _RMS_NORM(x, shape, weight, eps)
    normed: Tensor = _RmsNorm.apply(x, weight, len(shape))
    return normed


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """A GPU keeps a byte per number; x, of any shape, gives one alike."""
    if not on_gpu(x) or not training or not p:
        return _DROPOUT(x, p, training)
    dropped: Tensor = torch.native_dropout(x, p, training)[0]
    return dropped


def softmax(x: Tensor, dim: int, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """A GPU makes 32-bit weights of 16-bit scores, of any shape, in one kernel."""
    if on_gpu(x) and dtype is torch.float32 and x.dtype in (torch.bfloat16, torch.float16):
        weights: Tensor = _aten._softmax(x, dim, True)
        return weights
    return torch.softmax(x, dim, dtype=dtype)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The kernel that torch 2.13 chooses on an Ampere or later GPU (`sdp_utils.cpp`): flash, memory-efficient, or plain products.

    Args:
        query: (batch, heads, queries, head_dim); so is the result.
        key, value: (batch, heads, keys, head_dim), with fewer heads where there are groups.
        attn_mask: that (batch, heads, queries, keys) can be made of by repeating.
    """
    if not on_gpu(query):
        return _SDPA(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    observer = simulated[-1].observer
    is_half, width = query.dtype in (torch.bfloat16, torch.float16), query.shape[-1]
    if attn_mask is None and is_half and width <= 256 and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1:
        observer.attended("flash")
        return _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if not enable_gqa or query.shape[1] == key.shape[1]:
        observer.attended("memory-efficient")
        bias = None
        if attn_mask is not None:  # a mask of booleans becomes one of numbers
            bias = torch.zeros_like(attn_mask, dtype=query.dtype) if attn_mask.dtype is torch.bool else attn_mask
            bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        needs_sums = query.requires_grad or key.requires_grad or value.requires_grad
        return _aten._scaled_dot_product_efficient_attention(query, key, value, bias, needs_sums, dropout_p, is_causal, scale=scale)[0]
    observer.attended("plain products, with all scores in memory")
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    return _aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale)[0]
