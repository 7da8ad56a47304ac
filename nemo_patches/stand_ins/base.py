"""What all stand-ins share: refusing what they do not compute, and the extra state of modules, which is where FP8 keeps its scales."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_NOTHING: tuple[object, ...] = (None, {})
_PICKLES_OF_NOTHING = {pickle.dumps(nothing, protocol) for nothing in _NOTHING for protocol in range(pickle.HIGHEST_PROTOCOL + 1)}


class ExtraState(nn.Module):
    """A module with an entry `_extra_state` in its state: an empty tensor of bytes, as nothing here is FP8."""

    def get_extra_state(self) -> Tensor:
        """(0,) uint8: bytes of a pickle, none where there is no FP8."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Accept what says nothing of FP8: no entry, no bytes, or a pickle of nothing.

        Raises:
            NotImplementedError: for scales, which are not there to be kept.
        """
        if state is None or not isinstance(state, Tensor):
            if state is not None:
                raise RuntimeError("Unsupported checkpoint format.")
            return
        if state.numel() and state.numpy(force=True).tobytes() not in _PICKLES_OF_NOTHING:
            raise NotImplementedError("the checkpoint has scales of FP8, which a stand-in for TransformerEngine cannot use")

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Note the group over which the module is spread."""
        self.tp_group = tp_group


ANY = object()  # as the default of an argument that changes nothing here


def require_defaults(package: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse arguments that the real thing has not, and values that a stand-in would have to ignore.

    Raises:
        TypeError: for a name that is not among the defaults.
        NotImplementedError: for another value than the default.
    """
    if unknown := sorted(given.keys() - defaults.keys()):
        raise TypeError(f"what stands in for {package} has no argument {', '.join(unknown)}; known are {', '.join(defaults)}")
    if other := {name: value for name, value in given.items() if defaults[name] is not ANY and value != defaults[name]}:
        raise NotImplementedError(f"the stand-in for {package} computes nothing with {other}; no recipe of this project uses it")


def set_attributes(parameter: nn.Parameter, **attributes: Any) -> None:
    """Attributes by which Megatron knows how a parameter is spread, unless it has them."""
    for name, value in attributes.items():
        if not hasattr(parameter, name):
            setattr(parameter, name, value)


def get_dummy_wgrad(shape: list[int], dtype: torch.dtype, zero: bool = False) -> Tensor:
    """What a layer gives autograd for a weight, of any shape, whose gradient is accumulated already; values count where they are zeros."""
    return torch.zeros(shape, dtype=dtype, device=torch.cuda.current_device())
