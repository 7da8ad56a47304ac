"""The norm of the gradients and cutting them to it, without TransformerEngine and apex: one wait of the host, and no copies.

Megatron-core's own takes the norm of each tensor to the host: as many waits as this rank has parts of parameters.  It cuts a gradient by way of
a copy, which is a GiB for a table of 128,256 x 2,048 in 32 bit, when all of the optimizer's state is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_patches.core import Patch


def _on_the_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def l2_norm(
        chunk_size: int, noop_flag: Tensor, tensor_lists: Sequence[Sequence[Tensor]], per_tensor: bool, *arguments: Any
    ) -> tuple[Tensor, None]:
        """Norm of all tensors as one vector: (1,), on their device."""
        norms = torch._foreach_norm([tensor for tensors in tensor_lists for tensor in tensors])
        return torch.linalg.vector_norm(torch.stack(norms)).reshape(1).float(), None

    return l2_norm


def _in_place(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale_all(chunk_size: int, noop_flag: Tensor, tensor_lists: Sequence[Sequence[Tensor]], scale: float, *arguments: Any) -> None:
        """The second tensors become the first times a number."""
        for source, target in zip(*tensor_lists, strict=True):
            torch.mul(source, scale, out=target)

    return scale_all


PATCHES = (
    Patch(
        target="megatron.core.optimizer.clip_grads:l2_norm_impl",
        wrap=_on_the_device,
        package="megatron-core",
        digests={"0.15.3": "8d13bf0a03fc9ecd"},
        reason="It waits for the GPU once for each part of a parameter.",
        remove_when="the norm stays on the device until it has been summed over the ranks.",
        comfort=True,
    ),
    Patch(
        target="megatron.core.optimizer.clip_grads:multi_tensor_scale_impl",
        wrap=_in_place,
        package="megatron-core",
        digests={"0.15.3": "f93d9fde156e76a5"},
        reason="It copies each gradient that it cuts.",
        remove_when="gradients are multiplied where they are.",
        comfort=True,
    ),
)
