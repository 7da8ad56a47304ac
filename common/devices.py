"""The devices of this machine: number and kind of threads, and whether there is a GPU, found without loading torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


def has_gpu() -> bool:
    """Whether torch can use one; it is only asked, and loaded, where a driver of NVIDIA's or AMD's is, or where it is loaded already."""
    if "torch" not in sys.modules and not any(path.exists() for path in _GPU_DRIVERS):
        return False
    import torch

    return torch.cuda.is_available()


def num_threads() -> int:
    """As many as torch would take: its own setting where it is loaded, else OMP_NUM_THREADS or the processors that this process may use."""
    if "torch" in sys.modules:
        import torch

        return torch.get_num_threads()
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) else len(os.sched_getaffinity(0))
