"""The norm of the gradients without TransformerEngine and apex, for which the host waits once a step.

Megatron-core's own takes the norm of each tensor to the host: as many waits as this rank has parts of parameters.
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


PATCHES = (
    Patch(
        target="megatron.core.optimizer.clip_grads:l2_norm_impl",
        wrap=_on_the_device,
        package="megatron-core",
        digests={"0.15.3": "8d13bf0a03fc9ecd"},
        reason="It waits for the GPU once for each part of a parameter.",
        remove_when="the norm stays on the device until it has been summed over the ranks.",
    ),
)
