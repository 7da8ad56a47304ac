"""The CPU presented as NeMo's device on a machine without an accelerator.

NeMo 2.7.3 and Megatron-core 0.15.3 create and move tensors on "cuda" without asking whether it is there.  Two means
redirect that, and only where `torch.cuda.is_available()` is false:

- `_CpuDevice`, a torch function mode (torch's own extension point, also behind `torch.set_default_device`), rewrites
  `device="cuda"`, `.cuda()` and `pin_memory=True` in every torch call;
- `PATCHES` replaces the functions of `torch.cuda` and the two of NeMo and Megatron-core that no mode can reach.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nemo_patches.core import Patch, apply

_CPU = torch.device("cpu")
_mode: _CpuDevice | None = None


def present_cpu_as_device(patches: Sequence[Patch] | None = None) -> bool:
    """Redirect what NeMo sends to CUDA to the CPU; do nothing where CUDA is available.

    Args:
        patches: by default all of `PATCHES`; `TORCH_PATCHES` for programs that are not NeMo.

    Returns:
        True if the CPU is now (or was already) presented as the device.

    Raises:
        PatchError: if the installed NeMo or Megatron-core is not one that the patches know.
    """
    global _mode
    if torch.cuda.is_available():
        return False
    if _mode is None:
        apply(PATCHES if patches is None else patches)
        _mode = _CpuDevice()
        _mode.__enter__()  # for the life of the process, as torch.set_default_device does
    return True


class _CpuDevice(TorchFunctionMode):
    """Rewrites CUDA devices in the arguments of torch functions."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Megatron's optimizers tell 16 from 32 bit by names such as 'torch.cuda.FloatTensor'.
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if func is torch.Tensor.to and len(args) > 1 and is_cuda(args[1]):
            args = (args[0], _CPU, *args[2:])
        return func(*args, **kwargs)


def is_cuda(device: Any) -> bool:
    """Whether a device, or the name of one, is a GPU."""
    return (isinstance(device, torch.device) and device.type == "cuda") or (isinstance(device, str) and device.startswith("cuda"))


class NoStream:
    """A stream on a device that has none: everything is done in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Any = None) -> NoEvent:
        """A mark that is already passed."""
        return NoEvent()

    def synchronize(self) -> None:
        """Nothing to wait for."""


class NoEvent:
    """An event that has always happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Nothing to record."""

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether all is done: always."""
        return True


def returning(value: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A replacement that gives the same whatever it is asked."""
    return lambda original: lambda *args, **kwargs: value


def being(replacement: Any) -> Callable[[Callable[..., Any]], Any]:
    """A replacement that has no use for the original."""
    return lambda original: replacement


def torch_cuda(name: str, wrap: Callable[[Callable[..., Any]], Any]) -> Patch:
    """A function of `torch.cuda` that has to answer without a GPU."""
    return Patch(
        target=f"torch.cuda:{name}",
        wrap=wrap,
        package="torch",
        digests={},
        reason=f"NeMo and Megatron-core call torch.cuda.{name} without asking whether CUDA is there.",
        remove_when="they use torch.accelerator or their own device setting.",
    )


def _set_seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))  # torch.manual_seed writes down the call stack for every kind of absent device


def set_rng_state(new_state: torch.Tensor, device: int = -1, graph_safe: bool = False) -> None:
    """Megatron's tracker of random states gives the CPU's generator its state, (num_bytes,) uint8."""
    torch.set_rng_state(new_state)


def keep_devices(original: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement that leaves a checkpoint's tensors where they are."""
    return lambda checkpoint: checkpoint


TORCH_PATCHES = (
    torch_cuda("current_device", returning(_CPU)),
    torch_cuda("set_device", returning(None)),
    torch_cuda("synchronize", returning(None)),
    torch_cuda("Stream", being(NoStream)),
    torch_cuda("Event", being(NoEvent)),
    torch_cuda("current_stream", returning(NoStream())),
    torch_cuda("default_stream", returning(NoStream())),
    torch_cuda("stream", returning(contextlib.nullcontext())),
    torch_cuda("max_memory_allocated", returning(0)),
    torch_cuda("max_memory_reserved", returning(0)),
    torch_cuda("get_rng_state", being(lambda device=None: torch.get_rng_state())),
    torch_cuda("manual_seed", being(_set_seed)),
    Patch(
        target="torch.cuda.random:get_rng_state",
        wrap=being(lambda device=None: torch.get_rng_state()),
        package="torch",
        digests={},
        reason="Megatron's tracker of random states reads the state of the GPU's generator.",
        remove_when="the tracker reads the generator of the device in use.",
    ),
)
PATCHES = (
    *TORCH_PATCHES,
    Patch(
        target="megatron.core.tensor_parallel.random:_set_cuda_rng_state",
        wrap=being(set_rng_state),
        package="megatron-core",
        digests={"0.15.3": "9d178ab384bc8e3b"},
        reason="Megatron's tracker of random states writes the state of the GPU's generator.",
        remove_when="the tracker writes the generator of the device in use.",
    ),
    Patch(
        target="nemo.lightning.io.pl:_fix_tensors_device",
        wrap=keep_devices,
        package="nemo-toolkit",
        digests={"2.7.3": "49663a69190f02b9"},
        reason="Loading a checkpoint asserts an initialised CUDA before it moves tensors between GPUs.",
        remove_when="it asks whether there is a GPU.",
    ),
)
