"""Megatron-Bridge's own training loop on a CPU, with gloo: runs the `train.py` of an export in the environment of `make test-bridge`.

    PYTHON tests/recipes/bridge_on_cpu.py EXPORT/train.py [section.key=value ...]

What it stands in for: packages that only GPUs can build are empty modules; the device is the CPU; layers are Bridge's own ones
without TransformerEngine, and fused kernels are off.  Configuration, checkpoints, data, schedule, optimizer and loop are Bridge's and Megatron-core's.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
warnings.filterwarnings("ignore")

from benchmarks.conversion_peers import FUSIONS  # noqa: E402

ABSENT = ("transformer_engine", "nvidia_resiliency_ext", "megatron.energon", "modelopt")


# These look for the packages that are empty modules later, and must not find them.
LOOKS_FOR_PACKAGES = (
    "megatron.core",
    "megatron.core.extensions",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "torch._inductor.runtime.triton_heuristics",
    "transformers",
)


class _Nothing(type):
    """A class whose every attribute is such a class, and that leaves what it decorates as it is."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else lambda function: function


def _nothing(name: str) -> Any:
    return _Nothing(name, (), {})


def empty_module(name: str) -> types.ModuleType:
    """A module in which every name is a class that does nothing."""
    module = types.ModuleType(name)
    module.__path__ = []
    module.__version__ = "2.10.0"  # type: ignore[attr-defined]
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__getattr__ = lambda attribute: _module_attribute(attribute)  # type: ignore[method-assign]
    return module


def _module_attribute(attribute: str) -> Any:
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    return _nothing(attribute)


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages that are not there, and everything below them."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        wanted = any(name == absent or name.startswith(f"{absent}.") for absent in ABSENT)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return empty_module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def prepare() -> None:
    """To be called before Megatron-Bridge is imported."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}.items():
        os.environ.setdefault(name, value)
    for name in LOOKS_FOR_PACKAGES:
        importlib.import_module(name)
    sys.meta_path.insert(0, _EmptyModules())
    _present_cpu()
    from megatron.bridge.training import setup, train
    from megatron.bridge.training.config import ConfigContainer

    setup.initialize_megatron = functools.partial(setup.initialize_megatron, allow_no_cuda=True)
    train.get_tensor_shapes_adjust_fn_for_distillation = lambda *a, **k: None  # of the absent modelopt: it distils nothing
    ConfigContainer.validate = _validating_for_cpu(ConfigContainer.validate)


def _present_cpu() -> None:
    import torch
    from megatron.core.tensor_parallel import random

    from nemo_patches.cpu_device import TORCH_PATCHES, present_cpu_as_device, set_rng_state

    present_cpu_as_device(TORCH_PATCHES)
    torch.cuda.device_count = lambda: int(os.environ["WORLD_SIZE"])
    torch.cuda.empty_cache = lambda: None
    random._set_cuda_rng_state = set_rng_state


def _validating_for_cpu(original: Any) -> Any:
    """A configuration that does without what is not there on a CPU, before it is checked."""
    from megatron.bridge.models.gpt_provider import local_layer_spec

    @functools.wraps(original)
    def validate(self: Any) -> None:
        for name in (*FUSIONS, "cross_entropy_loss_fusion"):
            setattr(self.model, name, False)
        self.model.transformer_layer_spec = local_layer_spec
        self.dist.distributed_backend = "gloo"
        original(self)

    return validate


if __name__ == "__main__":
    prepare()
    script, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_path(script, run_name="__main__")
