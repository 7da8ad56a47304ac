"""Running commands in tests: always in a process group of their own, always with a hard time limit.

Ranks that hang ignore SIGTERM, so a group that is late gets SIGKILL.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


@dataclass(frozen=True)
class Finished:
    """Exit code and output of a command."""

    code: int
    stdout: str
    stderr: str


class Group:
    """A running command with all processes that it starts."""

    def __init__(self, arguments: Sequence[str], *, log_dir: Path, environment: Mapping[str, str] | None = None) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self._stdout, self._stderr = log_dir / "stdout", log_dir / "stderr"
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def wait(self, *, timeout_seconds: float | None) -> Finished:
        """Wait for the end, or kill the group and fail."""
        try:
            self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {timeout_seconds} s\n{self.stderr()[-3000:]}") from None
        finally:
            self.kill()
        return Finished(self.process.returncode, self._stdout.read_text(), self.stderr())

    def wait_until(self, condition: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Wait for a condition while the command runs."""
        end = time.monotonic() + timeout_seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError(f"ended or late before the condition held\n{self.stderr()[-3000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL to the command and all its descendants; torchrun puts its ranks into sessions of their own."""
        for process in self.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def descendants(self) -> list[psutil.Process]:
        """All processes below the command that are alive."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def stderr(self) -> str:
        """What the command has written to stderr so far."""
        return self._stderr.read_text(errors="replace")


def run_command(
    *arguments: str | Path, log_dir: Path, timeout_seconds: float = 300, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run `python -m module arguments` to its end."""
    group = Group(["-m", *map(str, arguments)], log_dir=log_dir, environment=environment)
    return group.wait(timeout_seconds=timeout_seconds)


def call_command(module: str, *arguments: str | Path | int) -> None:
    """Do what `python -m module arguments` does in this process: for the making of inputs, where starting one takes longer than the work."""
    code = importlib.import_module(module).main([*map(str, arguments)])
    assert code == 0, f"{module} ended with {code}"


def fork() -> int:
    """As `os.fork`, for work that tokenizes in the child.

    Where nobody has decided about threads, the tokenizers library starts none in a child: those that a test before had would be waited for in vain.
    """
    decided = os.environ.pop("TOKENIZERS_PARALLELISM", None)
    if (child := os.fork()) and decided is not None:
        os.environ["TOKENIZERS_PARALLELISM"] = decided
    return child
