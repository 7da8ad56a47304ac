"""The GPUs that the planner knows: rates and sizes from data sheets, networks from sites' documents; and which of them this machine has."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

GIGA = 1e9


@dataclass(frozen=True)
class Gpu:
    """One GPU in its node.

    Attributes:
        peak_flops: dense bfloat16 operations per second of the tensor cores.
        memory_gib: what CUDA reports as its total, which is less than the name says.
        memory_rate: bytes per second between the chip and its memory.
        nvlink_rate: bytes per second that it sends to the others of its node, all links together.
        network_rate: bytes per second that its node sends to other nodes, all cards together.
        devices_per_node: GPUs of a node.
        watts: thermal design power of the board, what SAVA's energy counts.
        source: where the numbers come from.
        maker: NVIDIA, or another, on whose GPUs nothing of NeMo runs.
    """

    name: str
    peak_flops: float
    memory_gib: float
    memory_rate: float
    nvlink_rate: float
    network_rate: float
    devices_per_node: int
    watts: float
    source: str
    maker: str = "NVIDIA"


_A100_SHEET = "NVIDIA A100 data sheet (2021)"
_H100_SHEET = "NVIDIA H100 data sheet (2023), SXM"

# Name, TFLOP/s, GiB; GB/s of the memory, the links inside a node and a node's network; GPUs of a node, watts; source, maker.
_ROWS: tuple[tuple[Any, ...], ...] = (
    ("a100-40gb", 312, 39.4, 1555, 300, 25, 4, 400, f"{_A100_SHEET}, SXM; network of Vega, two 100 Gbit/s cards per node of 4"),
    # Leonardo's own variant has more units; that they run at the rate of the others is our choice.  Watts: SAVA, section on energy.
    ("a100-64gb", 312, 63.4, 1640, 300, 50, 4, 400,
     "Leonardo's documents; SAVA for the power; network of two cards with two 100 Gbit/s ports each per node of 4"),
    ("a100-80gb", 312, 79.2, 2039, 300, 200, 8, 400, f"{_A100_SHEET}, SXM; network of a DGX, eight 200 Gbit/s cards per node of 8"),
    # No report of CUDA was available: a GiB below the name's number, as that of 80 GB has.  Memory rate assumed: HBM2e in the place of HBM3.
    ("h100-64gb", 989, 63.0, 2000, 450, 100, 4, 700,
     f"BSC's documents of MareNostrum 5 ACC; {_H100_SHEET}; network of four 200 Gbit/s cards per node of 4"),
    ("h100-80gb", 989, 79.2, 3350, 450, 400, 8, 700, f"{_H100_SHEET}; network of a DGX, eight 400 Gbit/s cards per node of 8"),
    # A GiB below the name's number, as that of 80 GB has.
    ("h100-94gb", 989, 93.0, 2396, 450, 100, 4, 700,
     "documents of TSUBAME 4.0 and Capella (rates, memory, power) and of Snellius: four 200 Gbit/s cards per node of 4"),
    # With its share of the host's memory CUDA names it NVIDIA GH200 120GB or 480GB; nvidia-smi says 97,871 MiB, of which CUDA keeps some.
    # Watts: JUPITER's limit of the whole superchip, its CPU included.
    ("gh200-96gb", 989, 94.5, 4000, 450, 100, 4, 680,
     "JSC's configuration of JUPITER: 96 GB at 4 TB/s, 150 GB/s to each of three others, four 200 Gbit/s cards per node of 4"),
    ("h200-141gb", 989, 139.8, 4800, 450, 400, 8, 700,
     "NVIDIA H200 data sheet (2024), SXM; network of a DGX, eight 400 Gbit/s cards per node of 8"),
    # nvidia-smi says 183,359 MiB of one, of which CUDA keeps some.
    ("b200-180gb", 2250, 178.3, 8000, 900, 400, 8, 1000,
     "NVIDIA DGX B200 and HGX B200 data sheets (2024); network of a DGX, eight 400 Gbit/s cards per node of 8"),
    # One of the two dies of a module, which ROCm shows as a GPU of its own.  Infinity Fabric: a ring passes the slowest of its links, one of
    # 50 GB/s each way.
    ("mi250x-64gb", 191.5, 64.0, 1638, 50, 100, 8, 280,
     "AMD Instinct MI250X data sheet (2021), halved; LUMI's documents: four 200 Gbit/s cards per node of 8 dies", "AMD"),
)  # fmt: skip
GPUS = {
    name: Gpu(name, tflops * 1e12, memory_gib, memory * GIGA, links * GIGA, network * GIGA, *rest)
    for name, tflops, memory_gib, memory, links, network, *rest in _ROWS
}


def find_gpu(name: str) -> Gpu:
    """The GPU of a name, in upper or lower case.

    Raises:
        ValueError: listing the known names.
    """
    gpu = GPUS.get(name.lower())
    if gpu is None:
        nearest = difflib.get_close_matches(name.lower(), GPUS, n=1, cutoff=0.0)[0]
        raise ValueError(f"there is no GPU {name}; did you mean {nearest}? Known are {', '.join(GPUS)}")
    return gpu


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
