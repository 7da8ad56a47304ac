"""What one node says of itself: software, driver, network, disks.  Reads only; the judgement is `slurm.checks.findings`."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

TOKEN_NAME = "token"  # a file that the login node wrote, beside which nodes write theirs
REDUCE_NAME = "all_reduce.json"
PACKAGES = ("torch", "nemo-toolkit", "megatron-core", "transformer-engine", "transformers")
FABRIC_VARIABLES = ("NCCL_", "UCX_", "GLOO_", "FI_", "CXI_", "MELLANOX_")
INFINIBAND = Path("/sys/class/infiniband")
NETWORK = Path("/sys/class/net")
SMI = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits")
ROCM_SMI = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
_NAMES = ("card series", "card model", "device name")  # releases of rocm-smi write them in small letters and in capitals


@dataclass(frozen=True)
class NodeFacts:
    """Facts of a node, as its tasks see them inside the runtime.

    Attributes:
        packages: name and version of those of PACKAGES that are installed.
        apex: "nvidia", "foreign" (the package index has another project of this name) or "absent".
        torch_cuda: CUDA version that torch was built for; None for another build.
        torch_rocm: ROCm's.
        gpus: name, driver version and MiB of each GPU.
        fabric: the environment's variables of communication libraries.
        infiniband: port and its state, as the kernel says it: "4: ACTIVE".
        interfaces: names of network interfaces.
        free_bytes: of the file systems that a job writes to.
        reads_token: whether it sees the file that the login node wrote.
        clock: seconds since 1970, taken right after a barrier of all tasks; None without one.
    """

    node: str
    python: str
    executable: str
    packages: dict[str, str] = field(default_factory=dict)
    apex: str = "absent"
    torch_cuda: str | None = None
    torch_rocm: str | None = None
    gpus: tuple[tuple[str, str, int], ...] = ()
    torch_gpus: int = 0
    fabric: dict[str, str] = field(default_factory=dict)
    infiniband: dict[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    free_bytes: dict[str, int] = field(default_factory=dict)
    reads_token: bool = False
    clock: float | None = None


def collect(paths: Iterable[Path], *, token: Path) -> NodeFacts:
    """The facts of this node, but the clock and what torch says, which its caller adds.

    Args:
        paths: whose free space counts.
        token: a file that the login node wrote.
    """
    return NodeFacts(
        node=os.environ.get("SLURMD_NODENAME", socket.gethostname()),
        python=platform.python_version(),
        executable=shutil.which("python") or "",
        packages=installed(PACKAGES),
        apex=apex_kind(),
        gpus=tuple(gpus()),
        fabric={name: value for name, value in sorted(os.environ.items()) if name.startswith(FABRIC_VARIABLES)},
        infiniband=infiniband_ports(INFINIBAND),
        interfaces=tuple(sorted(path.name for path in NETWORK.glob("*"))),
        free_bytes={str(path): shutil.disk_usage(path).free for path in paths if path.exists()},
        reads_token=token.is_file(),
    )


def installed(names: Iterable[str]) -> dict[str, str]:
    """Versions of installed packages; those that are missing are left out."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def apex_kind() -> str:
    """Whose `apex` would be imported; it is looked at and not imported."""
    spec = importlib.util.find_spec("apex")
    if spec is None:
        return "absent"
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    return "nvidia" if any((place / "optimizers" / "fused_adam.py").is_file() for place in places) else "foreign"


def gpus() -> list[tuple[str, str, int]]:
    """Name, driver version and MiB of each GPU, as NVIDIA's or AMD's driver counts them; empty where there is neither."""
    rows = [[part.strip() for part in line.split(",")] for line in _output_of(SMI).splitlines()]
    return [(name, driver, int(memory)) for name, driver, memory in rows] or parse_rocm(_output_of(ROCM_SMI))


def _output_of(words: Sequence[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def parse_rocm(text: str) -> list[tuple[str, str, int]]:
    """Name, driver version and MiB of each die that rocm-smi's JSON lists as a card; empty for anything else."""
    try:
        content = {key: {name.lower(): value for name, value in inner.items()} for key, inner in json.loads(text).items()}
    except (ValueError, AttributeError):
        return []
    driver = str(content.get("system", {}).get("driver version", "unknown"))
    cards = [inner for key, inner in content.items() if key.startswith("card")]
    return [
        (next((str(card[name]) for name in _NAMES if name in card), "AMD"), driver, int(card.get("vram total memory (b)", 0)) // 2**20)
        for card in cards
    ]


def infiniband_ports(root: Path) -> dict[str, str]:
    """State of each port of each InfiniBand card."""
    return {
        f"{state.parts[-4]}/{state.parts[-2]}": state.read_text(encoding="utf-8").strip() for state in sorted(root.glob("*/ports/*/state"))
    }
