"""Torch's Adam in one kernel, and what it and the others take over from each other's checkpoints."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from nemo_patches.adam_groups import translate
from nemo_patches.stand_ins.adam import FusedAdam
from nemo_patches.torch_adam import begin_adam, fuse

SETTINGS = {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}


def _steps(optimizer: torch.optim.Optimizer, count: int, *, first: int = 0) -> None:
    for step in range(first, first + count):
        for group in optimizer.param_groups:
            for number, parameter in enumerate(group["params"]):
                parameter.grad = torch.sin(torch.arange(parameter.numel()) + 3.0 * number + step).reshape(parameter.shape)
        optimizer.step()


def _parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.linspace(-1, 1, size)) for size in (5, 300)]


def _fused(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(parameters, **SETTINGS)
    fuse(optimizer)
    return optimizer


def _state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """As Megatron saves the state of an optimizer that is not distributed: the step of all parameters once."""
    saved = copy.deepcopy(optimizer.state_dict())
    steps = [state.pop("step") for state in saved["state"].values() if "step" in state]
    if steps:
        saved["state"]["common_step"] = steps[0]
    return saved


def _load(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """As Megatron loads it: groups in place of the optimizer's, the step back to each parameter."""
    if (step := saved["state"].pop("common_step", None)) is not None:
        for state in saved["state"].values():
            state["step"] = step.clone()
    optimizer.load_state_dict(saved)


def test_one_kernel_gives_what_torch_gives_without_it() -> None:
    mine, theirs = _parameters(), _parameters()
    fused, plain = _fused(mine), torch.optim.AdamW(theirs, **SETTINGS)
    begin_adam(fused)
    _steps(fused, 4)
    _steps(plain, 4)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    assert all(group["fused"] for group in fused.param_groups)


@pytest.mark.parametrize("after", ["torch", "fused torch", "TransformerEngine"])
@pytest.mark.parametrize("before", ["torch", "fused torch", "TransformerEngine"])
def test_a_run_goes_on_with_another_adam(before: str, after: str) -> None:
    """Its step counts on, in the form that its kernel takes, and it computes as it is built to."""
    make = {
        "torch": lambda p: torch.optim.AdamW(p, **SETTINGS),
        "fused torch": _fused,
        "TransformerEngine": lambda p: FusedAdam(p, **SETTINGS),
    }
    whole, parameters = _parameters(), _parameters()
    _steps(torch.optim.AdamW(whole, **SETTINGS), 5)
    first = make[before](parameters)
    _steps(first, 3)
    saved, second = _state(first), make[after](parameters)
    translate(saved, second)
    _load(second, saved)
    _steps(second, 2, first=3)
    for one, other in zip(parameters, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    if after != "TransformerEngine":  # which looks for no such word
        assert [bool(group["fused"]) for group in second.param_groups] == [after == "fused torch"]


def test_a_checkpoint_from_before_the_first_step_says_nothing_of_it() -> None:
    optimizer = FusedAdam(_parameters(), **SETTINGS)
    saved = _state(torch.optim.AdamW(_parameters(), **SETTINGS))
    translate(saved, optimizer)
    assert "step" not in saved["param_groups"][0] and saved["param_groups"][0]["bias_correction"]
