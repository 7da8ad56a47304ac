"""What a checkpoint says of Adam, for the one that takes it over: torch's, TransformerEngine's and apex's differ.

Torch's counts steps per parameter, in floats; the others per parameter group, in ints, which their kernels insist on.  And Megatron
puts the groups of a checkpoint in place of the optimizer's, with all that they say of how the other one computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_OF_THE_RUN = {"lr", "weight_decay", "betas", "eps"}  # the other defaults of an optimizer say how it computes


def translate(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Rewrite what Megatron has loaded of an optimizer's state, before it is given to another one.

    Args:
        saved: state of Megatron's optimizer: with or without the distributed one, in 16 or 32 bit.
    """
    inner = saved.get("optimizer", saved)
    state, groups = inner.get("state", {}), inner["param_groups"]
    computes = {key: value for key, value in optimizer.defaults.items() if key not in _OF_THE_RUN}
    step = state.pop("common_step", None)
    for group in groups:
        group.update(computes)
        step = _step(group, step)
    if step is None:  # saved before the first one
        return
    if isinstance(optimizer, torch.optim.Adam):  # torch's AdamW is one
        if state:
            state["common_step"] = torch.tensor(float(step))
        for group in groups:
            group["step"] = float(step)
    else:
        for group in groups:
            group["step"] = int(step)


def _step(group: Mapping[str, Any], otherwise: Any) -> Any:
    found = group.get("step")
    return otherwise if found is None else found
