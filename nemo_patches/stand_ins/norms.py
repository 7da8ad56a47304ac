"""Norms: apex's functions, and TransformerEngine's operations of version 2, which have extra state, unlike those of version 1."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from nemo_patches.fake_devices.fusion import one_kernel
from nemo_patches.stand_ins.base import ExtraState


@one_kernel
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, zero_centered_gamma: bool) -> Tensor:
    """(..., hidden_size) in the dtype of x, normalised over the last dimension in float32; weight and bias (hidden_size,)."""
    gamma = weight.float() + 1.0 if zero_centered_gamma else weight.float()
    return F.layer_norm(x.float(), weight.shape, gamma, bias.float(), eps).type_as(x)


class FusedLayerNormAffineFunction:
    """Apex's LayerNorm, called as an autograd function; Megatron looks for the arguments of `forward`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, shape: torch.Size, eps: float, memory_efficient: bool = False) -> Tensor:
        """See `layer_norm`; weight and bias are of the shape."""
        return layer_norm(x, weight, bias, eps, zero_centered_gamma=False)

    apply = forward


class FastLayerNormFN:
    """The same by a kernel that knows some widths, which Megatron chooses among."""

    @staticmethod
    def forward(x: Tensor, gamma: Tensor, beta: Tensor, eps: float, memory_efficient: bool = False) -> Tensor:
        """See `layer_norm`."""
        return layer_norm(x, gamma, beta, eps, zero_centered_gamma=False)

    apply = forward


@one_kernel
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centered_gamma: bool) -> Tensor:
    """(..., hidden_size) in the dtype of x, divided by its root mean square over the last dimension in float32; weight (hidden_size,)."""
    gamma = weight.float() + 1.0 if zero_centered_gamma else weight.float()
    # A view, so that the gradient leaves as one sum, as that of one kernel does: torch's parts of this norm would else be added one by
    # one to what else uses x, in an order that recomputation changes.
    return F.rms_norm(x.float().view_as(x), weight.shape, gamma, eps).type_as(x)


class _Norm(ExtraState):
    """Of TransformerEngine 2.9 and later."""

    has_bias = False

    def __init__(
        self,
        normalized_shape: Any = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        device: Any = "cuda",
        dtype: torch.dtype | None = None,
        params_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shape = hidden_size if normalized_shape is None else normalized_shape
        if shape is None or (hidden_size is not None and normalized_shape is not None):
            raise RuntimeError("exactly one of `normalized_shape` and `hidden_size` is expected")
        if dtype is not None and params_dtype is not None:
            raise RuntimeError("Both `dtype` and `params_dtype` (deprecated) kwargs are provided")
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        options = {"device": device, "dtype": dtype or params_dtype or torch.get_default_dtype()}
        self.weight = nn.Parameter(torch.full((shape,), float(not zero_centered_gamma), **options))
        if self.has_bias:
            self.bias = nn.Parameter(torch.zeros(shape, **options))
        if sequence_parallel is not None:
            for parameter in self.parameters():
                parameter.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]


class LayerNorm(_Norm):
    """See `layer_norm`."""

    has_bias = True

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden_size) -> (..., hidden_size)"""
        return layer_norm(x, self.weight, self.bias, self.eps, zero_centered_gamma=self.zero_centered_gamma)


class RMSNorm(_Norm):
    """See `rms_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden_size) -> (..., hidden_size)"""
        return rms_norm(x, self.weight, self.eps, zero_centered_gamma=self.zero_centered_gamma)


def of_version(version: str) -> tuple[type[LayerNorm], type[RMSNorm]]:
    """LayerNorm and RMSNorm of a version of TransformerEngine.

    Before 2.9 an operation without FP8 had the pickle of an empty dictionary as its extra state.
    """
    if not version.startswith("2.7."):
        return LayerNorm, RMSNorm
    older = {"get_extra_state": lambda self: torch.frombuffer(bytearray(pickle.dumps({})), dtype=torch.uint8)}
    return type("LayerNorm", (LayerNorm,), older), type("RMSNorm", (RMSNorm,), older)
