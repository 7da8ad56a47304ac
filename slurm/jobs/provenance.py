"""What an attempt ran: commit, command, packages, nodes, driver and environment, without secrets."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from common.artifacts import project_commit
from slurm.jobs.queue import expand_nodes

# Names that decide how a training runs.  Everything else stays out, so that no secret slips in with a name that nobody thought of.
_KEPT = re.compile(
    r"^(SLURM_|CUDA_|NVIDIA_|NCCL_|UCX_|GLOO_|FI_|OMP_|MKL_|TORCH|PYTORCH_|HF_(HOME|HUB_OFFLINE|DATASETS_OFFLINE)$|SCION_|MASTER_"
    r"|PYTHONPATH$|PATH$|LD_LIBRARY_PATH$|LOADEDMODULES$|VIRTUAL_ENV$|APPTAINER|SINGULARITY)"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE|_KEY\b|JWT|COOKIE|AUTH", re.IGNORECASE)
_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")


def collect(environment: Mapping[str, str], command: Sequence[str]) -> dict[str, Any]:
    """What an attempt runs, for `provenance.json`.

    Args:
        command: words of the training's command.
    """
    return {
        "commit": project_commit(),
        "command": list(command),
        "python": f"{platform.python_version()} {sys.executable}",
        "packages": installed_packages(),
        "host": platform.node(),
        "system": platform.platform(),
        "nodes": list(expand_nodes(environment.get("SLURM_JOB_NODELIST", ""))),
        "driver": driver(),
        "environment": kept_environment(environment),
    }


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, without any whose name speaks of a secret."""
    return {name: value for name, value in sorted(environment.items()) if _KEPT.match(name) and not _SECRET.search(name)}


def installed_packages() -> dict[str, str]:
    """Name and version of every package of this Python; those of a container are its image's."""
    found = {dist.metadata["Name"]: dist.version for dist in metadata.distributions() if dist.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def driver() -> list[str]:
    """GPU, driver and memory of each GPU of this node; empty where there are none."""
    try:
        done = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        version = Path("/proc/driver/nvidia/version")
        return version.read_text(encoding="utf-8").splitlines()[:1] if version.exists() else []
    return done.stdout.splitlines() if done.returncode == 0 else []
