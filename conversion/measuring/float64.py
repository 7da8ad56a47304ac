"""A float32 model computed in float64, without room for a second copy of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@contextlib.contextmanager
def in_float64(model: nn.Module) -> Iterator[None]:
    """Each innermost module, and each with parameters of its own, is widened before it runs and narrowed after, which loses no bit.

    What a library computes in float32 whatever its input is (norms, rotations, softmax of Hugging Face) it still does.
    """
    import torch

    def widen(module: nn.Module, args: Any, kwargs: Any) -> Any:
        module.double()
        # Megatron hands a tied output layer its matrix as an argument.
        return tuple(map(widened, args)), {name: widened(value) for name, value in kwargs.items()}

    def narrow(module: nn.Module, args: Any, output: Any) -> None:
        module.float()

    def widened(value: Any) -> Any:
        return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    hooks = []
    for module in model.modules():
        if next(module.children(), None) is None or next(module.parameters(recurse=False), None) is not None:
            hooks.append(module.register_forward_pre_hook(widen, with_kwargs=True))
            hooks.append(module.register_forward_hook(narrow))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
