"""Saving and loading torch's AdamW under Megatron's distributed optimizer.

TransformerEngine's and apex's Adam count steps per parameter group; torch's keeps a `step` tensor per parameter.  Megatron-core
0.15.3 reads those one by one when it saves, and forgets them in three places when it loads the fully reshardable format: it
asks for the step count of an optimizer that has no state yet, it gives all parameters the same tensor (which each of them
then increments), and it looks for `step` among the tensors of the file, where it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_patches.core import Patch

_TORCH_ADAM = (torch.optim.Adam, torch.optim.AdamW)


def _begin_before_loading(original: Callable[..., Any]) -> Callable[..., Any]:
    def sharded_state_dict(self: Any, model_sharded_state_dict: Any = None, is_loading: bool = False, *args: Any, **kwargs: Any) -> Any:
        if is_loading and isinstance(self.optimizer, _TORCH_ADAM):
            begin_adam(self.optimizer)
        state = original(self, {} if model_sharded_state_dict is None else model_sharded_state_dict, is_loading, *args, **kwargs)
        for tensors in state["param_state"].values():
            if isinstance(tensors, dict):
                tensors.pop("step", None)  # of each parameter; the groups have it too, and Megatron loads that one
        return state

    return sharded_state_dict


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Have torch's Adam update all parameters of a group in one kernel; Megatron makes it without that option."""
    if isinstance(optimizer, _TORCH_ADAM):
        for settings in (optimizer.defaults, *optimizer.param_groups):
            settings["fused"] = True


def begin_adam(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter that has no state that of step 0."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device if group.get("fused") else "cpu"),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


def _own_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def _set_main_param_and_optimizer_states(self: Any, model_param: Tensor, tensors: Mapping[str, Tensor]) -> None:
        if isinstance(self.optimizer, _TORCH_ADAM):
            group, order = self.model_param_group_index_map[model_param]
            state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
            state["step"] = state["step"].clone()
            tensors = {"step": state["step"], **tensors}
        original(self, model_param, tensors)

    return _set_main_param_and_optimizer_states


def _steps_in_one_transfer(original: Callable[..., Any]) -> Callable[..., Any]:
    def state_dict(self: Any) -> Any:
        optimizer = self.optimizer
        if not isinstance(optimizer, _TORCH_ADAM) or not any(state["step"].is_cuda for state in optimizer.state.values()):
            return original(self)
        optimizer.state_dict = lambda: _with_steps_on_host(type(optimizer).state_dict(optimizer))  # type: ignore[method-assign]
        try:
            return original(self)
        finally:
            del optimizer.state_dict  # the class's again

    return state_dict


def _with_steps_on_host(found: dict[str, Any]) -> dict[str, Any]:
    """The state of a fused Adam, whose counts of steps are on the device, with those on the host; one transfer brings all of them."""
    steps = torch.stack([state["step"] for state in found["state"].values()]).cpu().unbind()
    states = {key: {**state, "step": step} for (key, state), step in zip(found["state"].items(), steps, strict=True)}
    return {**found, "state": states}


PATCHES = tuple(
    Patch(
        target=f"megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.{method}",
        wrap=wrap,
        package="megatron-core",
        digests={"0.15.3": digest},
        reason=reason,
        remove_when="a run without TransformerEngine and apex resumes with the losses of an uninterrupted one.",
        comfort=wrap is _steps_in_one_transfer,
    )
    for method, wrap, digest, reason in (
        (
            "sharded_state_dict",
            _begin_before_loading,
            "181cb830c4137cb1",
            "It asserts that the optimizer has state before the state is loaded.",
        ),
        (
            "state_dict",
            _steps_in_one_transfer,
            "527af34648ecc76b",
            "It waits for the GPU once for each part of a parameter, to read the same number of steps.",
        ),
        (
            "_set_main_param_and_optimizer_states",
            _own_step,
            "a997f6d61abf1c85",
            "It expects `step` in the file and leaves one tensor shared by all parameters.",
        ),
    )
)
