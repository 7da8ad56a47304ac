"""Megatron-core without the allocator that it compiles with nvcc wherever it is imported.

It is for generated text that does not fit a GPU, which nothing here makes.  Each first import on a machine with nvcc waits for the compiler (17.6 s on
an H200's), a process that is killed meanwhile leaves a lock on which all later ones wait, and with a CUDA build of torch and nvcc where no GPU is
visible the import fails with an IndexError, as in `conversion.verify`, which computes on the processor.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from nemo_patches.core import file_problem

_NAME = "megatron.core.inference.unified_memory"
_DIGESTS = {"0.15.3": "ab7172fc0c7ec05d"}  # version of megatron-core -> xxh3 of the module's file


def problem() -> str | None:
    """Why the module is imported as it is, in a sentence; None if it is the one that is known or there is none."""
    return file_problem(_NAME, "megatron-core", _DIGESTS, Path(*_NAME.split(".")).with_suffix(".py"))


def compile_no_allocator() -> None:
    """From now on the module says that there is no such allocator, as it does itself where compiling fails; call it before Megatron-core is imported."""
    if _NAME not in sys.modules and problem() is None:
        module = ModuleType(_NAME, __doc__)
        vars(module).update(has_unified_memory=False, create_unified_mempool=None)
        sys.modules[_NAME] = module
