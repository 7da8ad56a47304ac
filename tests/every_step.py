"""Work that is killed at every step: before each of its file operations that changes something, one after the other, none left to chance.

The work runs in a forked process that counts those operations (Python's audit events) and ends like one that got SIGKILL, without any
`finally`, before the one that was asked for.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes import fork

_KILLED = 77
_TIMEOUT_SECONDS = 120
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate", "os.utime")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def run_to_the_end(work: Callable[[], object], below: Path) -> list[str]:
    """All steps of the work, which must succeed: what it does to which file below a directory."""
    steps, error = _fork(work, below, None)
    assert error is None, error
    return steps


def kill_before(work: Callable[[], object], below: Path, step: int) -> None:
    """Run the work up to a step, counted from 0, and no further."""
    _, error = _fork(work, below, step)
    assert error == _KILLED, f"was not killed at step {step}: {error}"


def end_of(work: Callable[[], object], below: Path) -> str | None:
    """Why the work failed, None if it did not."""
    _, error = _fork(work, below, None)
    assert error is None or isinstance(error, str)
    return error


def end_without_reads_behind_the_rename(work: Callable[[], object], output: Path) -> str | None:
    """Why the work failed where no file can be opened any more, code aside, once the output has its name; None if it did not."""
    has_name = False

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal has_name
        if event == "os.rename":
            named = Path(os.path.abspath(os.fsdecode(arguments[1])))
            has_name = has_name or named == output or (named.parent == output and not named.name.startswith("."))  # a folder of each model
        elif event == "open" and has_name and _is_read(path := arguments[0]):
            raise OSError(errno.EIO, "planted behind the rename", path)

    def watched() -> None:
        sys.addaudithook(watch)
        code = work()
        assert has_name and not code, f"the output got its name: {has_name}; exit code {code}"

    return end_of(watched, output.parent)


def _is_read(path: object) -> bool:
    """Whether a path is of a file that is not code."""
    code = (".py", ".pyc", ".so")
    return isinstance(path, str) and os.path.isfile(path) and not path.startswith((sys.prefix, sys.base_prefix)) and not path.endswith(code)


def _fork(work: Callable[[], object], below: Path, stop: int | None) -> tuple[list[str], str | int | None]:
    reading, writing = os.pipe()
    if (child := fork()) == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as answer:
            json.dump(_run(work, str(below), stop), answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return [], os.waitstatus_to_exitcode(status)
    steps, error = json.loads(text)
    return steps, error


def _run(work: Callable[[], object], below: str, stop: int | None) -> tuple[list[str], str | None]:
    gc.disable()  # it would touch, and so copy, all memory of the parent
    signal.alarm(_TIMEOUT_SECONDS)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 until the process ends
    steps: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if _changes_something(event, arguments, below):
            if len(steps) == stop:
                os._exit(_KILLED)
            steps.append(f"{event} {arguments[0]}")

    sys.addaudithook(watch)
    try:
        work()
        return steps, None
    except BaseException as error:
        return steps, "".join(traceback.format_exception_only(error)).strip()


def _changes_something(event: str, arguments: tuple[Any, ...], below: str) -> bool:
    if event == "open":
        path, _, flags = arguments
        if not isinstance(flags, int) or not flags & _WRITES:
            return False
    elif event in _CHANGES:
        path = arguments[0]
        if event in ("os.remove", "os.rmdir") and arguments[-1] != -1:
            return True  # by a name in an open directory, as `shutil.rmtree` does
    else:
        return False
    return isinstance(path, str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(path)).startswith(below)
