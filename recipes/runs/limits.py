"""What the machine must leave a training process: open files, shared memory, a kernel for attention."""

from __future__ import annotations

import importlib.util
import os
import resource
from pathlib import Path

from recipes.rules.schema import Recipe

_OPEN_FILES = 256  # least with which a run of one rank starts, imports included
_ENOUGH_FILES = 4096
_SHARED_MEMORY = Path("/dev/shm")
_BYTES_OF_A_TOKEN = 4 * 8  # token, label, position and whether it counts, as a loader's process sends them
_BATCHES_AHEAD = 3  # of each loader process: two that wait, and one that is used
_ATTENTION_KERNELS = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")


def require_limits(recipe: Recipe, *, shared_memory: Path = _SHARED_MEMORY) -> None:
    """Raise this process's limit of open files as far as it may, and refuse to start where the run could not work.

    Raises:
        ValueError: naming the limit, what is needed and how to get it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _ENOUGH_FILES:
        soft = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(_ENOUGH_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if 0 <= soft < _OPEN_FILES:
        raise ValueError(
            f"this process may open {soft} files; expected at least {_OPEN_FILES}: raise the limit, `ulimit -n {_ENOUGH_FILES}`"
        )
    _require_shared_memory(recipe, shared_memory)
    _require_kernel()


def _require_shared_memory(recipe: Recipe, directory: Path) -> None:
    if not recipe.data.num_workers:
        return
    advice = "set data.num_workers=0, or give the container more (--shm-size, --ipc=host)"
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        raise ValueError(f"{directory}, by which loader processes send their batches, cannot be written to; {advice}")
    batches = _BATCHES_AHEAD * recipe.data.num_workers * recipe.parallel.devices_per_node
    needed = batches * recipe.schedule.micro_batch_size * recipe.data.sequence_length * _BYTES_OF_A_TOKEN
    status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise ValueError(
            f"{directory} has {free / 2**20:.1f} MiB free; expected {needed / 2**20:.1f}, for {recipe.data.num_workers} loader processes of each"
            f" of {recipe.parallel.devices_per_node} ranks; {advice}"
        )


def _require_kernel() -> None:
    said = {name: os.environ[name] for name in _ATTENTION_KERNELS if name in os.environ}
    if wrong := [f"{name}={value}" for name, value in said.items() if value not in ("0", "1")]:
        raise ValueError(f"the environment has {', '.join(wrong)}; expected 0 or 1, or unset it")
    if list(said.values()) == ["0"] * len(_ATTENTION_KERNELS) and importlib.util.find_spec("transformer_engine") is not None:
        raise ValueError(f"the environment has {', '.join(said)} all 0, which leaves TransformerEngine no kernel for attention; unset one")
