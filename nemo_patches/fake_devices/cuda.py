"""What `torch.cuda` says of GPUs that are not there, and of their streams, events and generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from nemo_patches.cpu_device import NoEvent, NoStream, being, returning
from nemo_patches.fake_devices.world import played

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
    gpu = played[-1].world.gpu
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
    played[-1].observer.waited("synchronize")


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


REPLACED: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("is_available", "4f9ccdcba8671cbf", returning(True)),
    ("is_initialized", "33097edf6bf20cef", returning(True)),
    ("init", "c95f2577755c954d", returning(None)),
    ("_lazy_init", "088d3a1be621a9e2", returning(None)),
    ("_lazy_call", "f4dc8a764aa4b06e", returning(None)),
    ("device_count", "6867ecd9cc812a9a", being(lambda: played[-1].world.devices_per_node)),
    ("current_device", "95a918a72e339a13", being(lambda: played[-1].world.device.index)),
    ("set_device", "d86e5559624ca993", returning(None)),
    ("device", "2951cf5fa401f6ea", returning(contextlib.nullcontext())),
    ("synchronize", "197f031b313fec1e", being(_synchronize)),
    ("Stream", "1f6b0102e6a67c9c", being(_Stream)),
    ("Event", "685a17553db159fa", being(_Event)),
    ("current_stream", "bb6694a7ab8c3470", returning(_Stream())),
    ("default_stream", "5ba62b16b87961ac", returning(_Stream())),
    ("stream", "3cc7b1d285065c56", returning(contextlib.nullcontext())),
    ("set_stream", "c8524912b5e20b85", returning(None)),
    ("max_memory_allocated", "fdd8b9f8c3e18487", being(lambda device=None: played[-1].observer.peak)),
    ("max_memory_reserved", "a1271c5f0233b4b8", being(lambda device=None: played[-1].observer.peak)),
    ("memory_allocated", "d96ff54917d433e9", being(lambda device=None: played[-1].observer.now)),
    ("memory_reserved", "d01f2b40d39ef944", being(lambda device=None: played[-1].observer.now)),
    ("mem_get_info", "094b6943b029953f", being(lambda device=None: (played[-1].world.gpu.total_memory,) * 2)),
    ("reset_peak_memory_stats", "e06992f2569fa7f4", returning(None)),
    ("empty_cache", "21eac9f0b4039e85", returning(None)),
    ("get_rng_state", "06f5d8d816379b5b", returning(STATE)),
    ("set_rng_state", "ccc3cba539ab5793", returning(None)),
    ("manual_seed", "7919ec0f7a7cf398", returning(None)),
    ("manual_seed_all", "d5fc9ad93fc4183e", returning(None)),
    ("initial_seed", "4725fdd8efa05bfd", returning(0)),
    ("get_device_properties", "a1ce4c1c5705abd5", being(_properties)),
    ("get_device_capability", "db4c17a13ec6481c", being(lambda device=None: played[-1].world.gpu.capability)),
    ("get_device_name", "c0a30ad2a0746c08", being(lambda device=None: played[-1].world.gpu.name)),
    ("is_bf16_supported", "aa773b236ffd1e08", returning(True)),
    ("is_current_stream_capturing", "e192d228d5ad9ba3", returning(False)),
)
