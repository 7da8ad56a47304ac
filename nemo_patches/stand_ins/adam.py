"""The fused Adam of TransformerEngine and apex, and their functions over lists of tensors.

Both count steps per parameter group, give every parameter state at the first step, and pass over those without a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from nemo_patches.fake_devices.fusion import one_kernel
from nemo_patches.stand_ins.base import ANY, require_defaults

_TAKEN = {
    "amsgrad": False,
    "bias_correction": True,
    "adam_w_mode": True,
    "capturable": False,
    "master_weights": False,
    "set_grad_none": ANY,
}
_IN_FEWER_BITS = {"use_decoupled_grad": False, "store_param_remainders": False} | dict.fromkeys(
    ("master_weight_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), torch.float32
)


class FusedAdam(torch.optim.Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), its moments in float32.

    TransformerEngine's further arguments, which keep moments and weights in fewer bits, are accepted with their defaults alone.
    """

    taken: ClassVar[dict[str, Any]] = _TAKEN | _IN_FEWER_BITS

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **others: Any,
    ) -> None:
        require_defaults("FusedAdam", others, self.taken)
        super().__init__(params, {"lr": lr, "bias_correction": True, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:  # type: ignore[override]
        """One step of every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        with torch.no_grad():
            for group in self.param_groups:
                if group["params"]:
                    group["step"] = group.get("step", 0) + 1
                    if not isinstance(group["step"], int):
                        raise TypeError(f"the kernel takes the number of the step as an int; found {group['step']!r}")
                for parameter in group["params"]:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, dtype=torch.float32)
        if parameter.grad is None:
            return
        settings = {name: group[name] for name in ("betas", "step", "lr", "eps", "weight_decay")}
        _adam_step(parameter.data, parameter.grad, state["exp_avg"], state["exp_avg_sq"], **settings)


@one_kernel
def _adam_step(
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    *,
    betas: tuple[float, float],
    step: int,
    lr: float,
    eps: float,
    weight_decay: float,
) -> None:
    first, second = betas
    gradient = gradient.float()
    mean.lerp_(gradient, 1 - first)
    square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    spread = square.sqrt() / (1 - second**step) ** 0.5 + eps
    parameter.mul_(1 - lr * weight_decay).addcdiv_(mean, spread, value=-lr / (1 - first**step))


def multi_tensor_applier(operation: Callable[..., Any], noop_flag: Tensor, tensor_lists: Sequence[list[Tensor]], *arguments: Any) -> Any:
    """Apply an operation to lists of tensors of any shape, in pieces of so many values; the flag is (1,)."""
    return operation(2048 * 32, noop_flag, tensor_lists, *arguments)


@one_kernel
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Sequence[list[Tensor]], per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """Norm of all tensors as one vector, (1,) in float32 and on their device, and (num_tensors,) of each where that is asked for."""
    norms = torch.stack([tensor.float().norm() for tensor in tensor_lists[0]])
    return norms.norm().reshape(1), norms if per_tensor else norms.new_empty(0)


@one_kernel
def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: Sequence[list[Tensor]], scale: float) -> None:
    """Write each tensor of the first list, of any shape, times a number, into that of the second; the flag is (1,)."""
    for source, target in zip(*tensor_lists, strict=True):
        target.copy_(source * scale)


class ApexFusedAdam(FusedAdam):
    """Apex's: a parameter gets its state with its first gradient; no arguments for fewer bits."""

    taken = _TAKEN

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        if parameter.grad is not None:
            super()._update(parameter, group)
