"""What a command costs, from the start of its process to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT_SECONDS = 4 * 3600
_UNCACHED = "PYTHONDONTWRITEBYTECODE"  # with it each start compiles all of this project again, and nothing of what pip has installed

# Starts a process and reports the resources of that child and those that it waited for: wait4 by its id sees no other.  It is small, as
# Linux counts the largest resident set of a process from that of the one that started it.
_METER = """
import json, os, sys, time
start = time.monotonic()
child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(child, 0)
seconds = time.monotonic() - start
print()
print(json.dumps([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)]))
"""


@dataclass(frozen=True)
class Measured:
    """Of a process and its children.

    Attributes:
        seconds: on the clock.
        cpu_seconds: of all processors.
        peak_bytes: largest resident set of a single process, mapped files included.
        output: what it printed.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: str


def usual_environment() -> dict[str, str]:
    """Variables of this process, but for the one that only developers and their machines set."""
    return {name: value for name, value in os.environ.items() if name != _UNCACHED}


def measure(words: Sequence[str | Path], *, environment: Mapping[str, str] | None = None) -> Measured:
    """Run a command to its end.

    Python may keep what it compiles, so a first start costs more than the next ones, as it does for a user.

    Args:
        environment: variables beside those of this process.

    Raises:
        RuntimeError: if it fails, with its last words.
    """
    command = [sys.executable, "-c", _METER, *map(str, words)]
    variables = {**usual_environment(), **(environment or {})}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    output, _, figures = done.stdout.strip().rpartition("\n")
    seconds, cpu_seconds, peak_bytes, code = json.loads(figures) if not done.returncode else (0.0, 0.0, 0, done.returncode)
    if code:
        raise RuntimeError(f"{' '.join(map(str, words))} ended with {code}:\n{done.stderr[-3000:]}")
    return Measured(seconds, cpu_seconds, peak_bytes, output.rstrip("\n"))
