"""NeMo AutoModel's own training loop on a CPU, with gloo: runs the config.yaml of an export in the environment of `make test-automodel`.

    PYTHON -m torch.distributed.run --nproc-per-node 1 tests/recipes/automodel_on_cpu.py EXPORT/config.yaml

What it stands in for: the device is the CPU, and has no memory to tell of; nothing is compiled.  All else is AutoModel's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch._dynamo
from torch.overrides import TorchFunctionMode

from nemo_patches.cpu_device import TORCH_PATCHES, is_cuda, present_cpu_as_device


class _NumberedDevice(TorchFunctionMode):
    """Takes the number of a GPU for the CPU."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(kwargs.get("device"), int):
            kwargs = {**kwargs, "device": "cpu"}
        if func in (torch.Tensor.to, torch._C._nn._parse_to):
            args = tuple("cpu" if type(value) is int or is_cuda(value) else value for value in args)
        return func(*args, **kwargs)


def main() -> None:
    """Train."""
    present_cpu_as_device(TORCH_PATCHES)
    torch._dynamo.config.disable = True  # compiling for a CPU takes longer than the run
    for name in ("current_device", "reset_peak_memory_stats", "max_memory_allocated", "empty_cache"):
        setattr(torch.cuda, name, lambda *arguments, **options: 0)
    from nemo_automodel.cli.app import main as automodel

    sys.argv = ["automodel", *sys.argv[1:], "--dist_env.backend", "gloo"]
    with _NumberedDevice():
        automodel()


if __name__ == "__main__":
    main()
