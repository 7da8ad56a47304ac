"""The identity of a process, by which another process, later or on another machine, can tell whether it has ended; and one that ends with it."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import xxhash

_LABEL = re.compile(r"([A-Za-z0-9.-]*)_([0-9a-f]{8})_([0-9a-f]{8})_(\d+)_(\d+)")
_HOST_CHARACTERS = 16  # of the host's name that stand in a label, for people; its digest decides
_ENDED_STATES = ("Z", "X")  # killed, and waiting for its parent to notice


@dataclass(frozen=True)
class ProcessIdentity:
    """A process of a machine since it was started.

    Attributes:
        host: the beginning of the machine's name, for people.
        machine: digest of its name, its machine id and the namespace of its process ids.
        boot: digest of the kernel's boot id.
        started: in the kernel's clock ticks since boot, as a process id is used again.
    """

    host: str
    machine: str
    boot: str
    process_id: int
    started: int

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process."""
        process_id = os.getpid()
        _, started = _state_and_start(process_id)
        return cls(*_this_machine(), process_id, started)

    @classmethod
    def from_label(cls, label: str) -> ProcessIdentity | None:
        """The process of a label; None for other text."""
        found = _LABEL.fullmatch(label)
        return cls(found[1], found[2], found[3], int(found[4]), int(found[5])) if found else None

    @property
    def label(self) -> str:
        """For the name of a file: some 50 characters."""
        return f"{self.host}_{self.machine}_{self.boot}_{self.process_id}_{self.started}"

    @property
    def is_here(self) -> bool:
        """Whether this machine can tell if the process has ended: it is of the same machine, and not of another container on it."""
        return self.machine == _this_machine()[1]

    @property
    def is_gone(self) -> bool:
        """Whether the process has certainly ended; one of another machine may be at work, so the answer is no."""
        if not self.is_here:
            return False
        if self.boot != _this_machine()[2]:
            return True
        try:
            os.kill(self.process_id, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # of another user
            pass
        try:
            state, started = _state_and_start(self.process_id)
        except FileNotFoundError:  # /proc may hide the processes of others
            return False
        return started != self.started or state in _ENDED_STATES

    def __str__(self) -> str:
        return f"process {self.process_id} on {self.host}"


def start_of(process_id: int) -> int | None:
    """When a process began, in the kernel's clock ticks since boot; None if none runs under this number, or this system has no /proc."""
    try:
        state, started = _state_and_start(process_id)
    except OSError:
        return None
    return None if state in _ENDED_STATES else started


def boot_id() -> str:
    """The kernel's name of this boot, "" on systems without one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Within which process ids mean the same, "" on systems without such."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _state_and_start(process_id: int) -> tuple[str, int]:
    stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()  # fields 3 and 22; the name in field 2 may hold spaces and brackets
    return fields[0], int(fields[19])


@cache
def _this_machine() -> tuple[str, str, str]:
    """Name, digest of the machine and digest of its boot.

    Process ids of another namespace (a container) mean nothing here, so that is another machine.  A machine without an id of its own counts
    as another one after each boot: images may give many machines one name.
    """
    name = socket.gethostname()
    boot = boot_id()
    try:
        machine_id = Path("/etc/machine-id").read_text(encoding="ascii").strip() or boot
    except OSError:
        machine_id = boot
    host = re.sub(r"[^A-Za-z0-9.-]", "", name)[:_HOST_CHARACTERS]
    return host, _digest(f"{name}\n{machine_id}\n{pid_namespace()}"), _digest(boot)


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())[:8]


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Let this process be killed when its parent ends: it would wait for work forever, and hold what the parent had locked."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
