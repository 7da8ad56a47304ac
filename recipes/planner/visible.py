"""The GPU of the machine that a command runs on, as the planner knows it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from recipes.planner.hardware import GPUS, Gpu

_DEVICES = ("nvidia[0-9]*", "dxg")  # what a driver puts into /dev, on Linux and in Windows' Linux
_SLOWER_FORMS = ("pcie", "nvl")  # of the H100 and the H200: other clocks, links and power than the boards of the table
_SAME_SIZE = 0.1  # a part of a GPU (MIG) has its name, but less memory


def visible_gpu() -> Gpu | None:
    """The first GPU that this process may use, None where there is none; torch, slow to import, is asked only where there is a driver."""
    if not any(any(Path("/dev").glob(pattern)) for pattern in _DEVICES):
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return gpu_of(found.name, found.total_memory)


def gpu_of(name: str, total_bytes: int) -> Gpu:
    """What is known of a GPU by the name and the memory that CUDA reports.

    One that is not in the table keeps its name, and has its own memory but an A100's rates, good enough to choose a layout that fits.
    """
    memory_gib = total_bytes / 2**30
    words = name.lower()
    same = [gpu for gpu in GPUS.values() if re.search(rf"\b{gpu.name.partition('-')[0]}\b", words)]
    if same and not ("a100" not in words and any(form in words for form in _SLOWER_FORMS)):
        nearest = min(same, key=lambda gpu: abs(gpu.memory_gib - memory_gib))
        if abs(nearest.memory_gib / memory_gib - 1) < _SAME_SIZE:
            return replace(nearest, memory_gib=memory_gib)
    return replace(GPUS["a100-40gb"], name=name, memory_gib=memory_gib, source="CUDA for the memory; rates of an A100")


def has_known_rates(gpu: Gpu) -> bool:
    """Whether its times mean something."""
    return gpu.name in GPUS
