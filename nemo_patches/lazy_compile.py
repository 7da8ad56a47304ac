"""torch.compile as a decorator that begins its work when the function is called.

Megatron-core decorates two dozen functions with it where it is imported, and the first of them imports the compiler, whether or not any is ever called:
on a CPU none is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from nemo_patches.core import Patch


def compile_when_called(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile that compiles a function, not a module, at its first call."""

    @functools.wraps(original)
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile(function, **options)
        return _WhenCalled(original, model, options).decorated() if isinstance(model, FunctionType) else original(model, **options)

    return compile


class _WhenCalled:
    def __init__(self, compiler: Callable[..., Any], function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._compiler, self._function, self._options = compiler, function, options
        self._compiled: Callable[..., Any] | None = None

    def decorated(self) -> Callable[..., Any]:
        """The function that is called instead."""

        @functools.wraps(self._function)
        def decorated(*arguments: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():  # inside another compiled function, which becomes one with it
                return self._function(*arguments, **options)
            if self._compiled is None:
                self._compiled = self._compiler(self._function, **self._options)
            return self._compiled(*arguments, **options)

        return decorated


PATCHES = (
    Patch(
        target="torch:compile",
        wrap=compile_when_called,
        package="torch",
        digests={"2.11.0": "e171679bb7cf5e04", "2.13.0": "e58dca34af724e23"},
        reason="Importing Megatron-core imports torch's compiler for functions that a run may never call.",
        remove_when="torch.compile imports its backend at the first call.",
    ),
)
