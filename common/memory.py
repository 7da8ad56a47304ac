"""How much memory this process may still use: what the machine has free, within the limits of its job."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def free_memory(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be taken without swapping and without being killed: Slurm and containers limit memory by control groups.

    Args:
        proc, cgroups: where the kernel tells it.

    Raises:
        ValueError: on a system that does not tell.
    """
    limits = [*_of_machine(proc), *(left for _, left in _groups(proc, cgroups)), *_of_process(proc)]
    if not limits:
        raise ValueError("this system does not say how much memory is free; give --memory")
    return max(0, min(limits))


def total_memory(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that this process could have if nothing else ran.

    Raises:
        ValueError: on a system that does not tell.
    """
    limits = [*_of_machine(proc, "MemTotal:"), *(most for most, _ in _groups(proc, cgroups))]
    if not limits:
        raise ValueError("this system does not say how much memory it has")
    return min(limits)


def _of_machine(proc: Path, name: str = "MemAvailable:") -> Iterator[int]:
    for line in _lines(proc / "meminfo"):
        if line.startswith(name):
            yield int(line.split()[1]) << 10


def _groups(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """Limit of each group above this process, of either version, and what is left; pages of files that can be dropped count as free."""
    for line in _lines(proc / "self/cgroup"):
        _, controllers, name = line.split(":", 2)
        if not controllers:
            root, limit, used, cache = cgroups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, used, cache = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        group = root / name.lstrip("/")
        for place in (group, *(above for above in group.parents if above.is_relative_to(root))):
            most, taken = (_first_number(place / file) for file in (limit, used))
            if most is not None and taken is not None:
                yield most, most - taken + _dropped(place, cache)


def _dropped(group: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in _lines(group / "memory.stat") if line.split()[:1] == [name]), 0)


def _of_process(proc: Path) -> Iterator[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        used = next((int(line.split()[1]) << 10 for line in _lines(proc / "self/status") if line.startswith("VmSize:")), 0)
        yield limit - used


def _first_number(path: Path) -> int | None:
    text = next(iter(_lines(path)), "").strip()
    return int(text) if text.isdigit() else None  # "max" is no limit


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
