"""What `torch.cuda` says of simulated GPUs, and of their streams, events and generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from nemo_patches.cpu_device import NoEvent, NoStream, being, returning
from nemo_patches.fake_devices.world import simulated

STATE = torch.zeros(16, dtype=torch.uint8)
GENERATOR: Any = SimpleNamespace(
    get_state=lambda: STATE,
    set_state=lambda state: None,
    graphsafe_get_state=lambda: GENERATOR,
    graphsafe_set_state=lambda state: None,
    clone_state=lambda: GENERATOR,
    manual_seed=lambda seed: GENERATOR,
)


def _properties(*args: Any) -> SimpleNamespace:
    gpu = simulated[-1].world.gpu
    return SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.total_memory,
        multi_processor_count=108,
        gcnArchName="",
    )


class _Stream(NoStream):
    """A stream whose end the host can wait for."""

    device_index, stream_id, cuda_stream = 0, 0, 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def synchronize(self) -> None:
        """Wait."""
        _synchronize()

    def query(self) -> bool:
        """Whether all is done: always."""
        return True


class _Event(NoEvent):
    """An event that the host can wait for."""

    def synchronize(self) -> None:
        """Wait."""
        _synchronize()

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds."""
        return 1.0


def _synchronize(*args: Any) -> None:
    simulated[-1].observer.waited("synchronize")


def move_modules(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Module._apply` swaps the data of a parameter, which a fake tensor of another device does not allow by itself."""

    def _apply(self: Any, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        for parameter in self.parameters():
            if isinstance(parameter, FakeTensor):
                with torch.no_grad():
                    new = fn(parameter)
                if new is not parameter:
                    parameter.data = new
                    parameter.fake_device = new.device
        for module in self.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = fn(buffer)
        return self

    return _apply


def no_pinning(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the loader's `pin_memory`, whose thread would ask a device."""
    return lambda data, device=None: data


REPLACED: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("is_available", returning(True)),
    ("is_initialized", returning(True)),
    ("init", returning(None)),
    ("_lazy_init", returning(None)),
    ("_lazy_call", returning(None)),
    ("device_count", being(lambda: simulated[-1].world.devices_per_node)),
    ("current_device", being(lambda: simulated[-1].world.device.index)),
    ("set_device", returning(None)),
    ("device", returning(contextlib.nullcontext())),
    ("synchronize", being(_synchronize)),
    ("Stream", being(_Stream)),
    ("Event", being(_Event)),
    ("current_stream", returning(_Stream())),
    ("default_stream", returning(_Stream())),
    ("stream", returning(contextlib.nullcontext())),
    ("set_stream", returning(None)),
    ("max_memory_allocated", being(lambda device=None: simulated[-1].observer.peak)),
    ("max_memory_reserved", being(lambda device=None: simulated[-1].observer.peak)),
    ("memory_allocated", being(lambda device=None: simulated[-1].observer.now)),
    ("memory_reserved", being(lambda device=None: simulated[-1].observer.now)),
    ("mem_get_info", being(lambda device=None: (simulated[-1].world.gpu.total_memory,) * 2)),
    ("reset_peak_memory_stats", returning(None)),
    ("empty_cache", returning(None)),
    ("get_rng_state", returning(STATE)),
    ("set_rng_state", returning(None)),
    ("manual_seed", returning(None)),
    ("manual_seed_all", returning(None)),
    ("initial_seed", returning(0)),
    ("get_device_properties", being(_properties)),
    ("get_device_capability", being(lambda device=None: simulated[-1].world.gpu.capability)),
    ("get_device_name", being(lambda device=None: simulated[-1].world.gpu.name)),
    ("is_bf16_supported", returning(True)),
    ("is_current_stream_capturing", returning(False)),
)
