"""Work that several processes share through files, and that outlives any of them.

Every piece of work is a file that moves from `pending` through `running` to `done` or `failed`.  Its worker holds a lock on it: where a
worker died, the lock is free and the piece goes back to `pending`.  Another lock, on the queue, is held while pieces move, so that whoever looks
into one folder after the other sees each piece.  Locks are those of the kernel (flock), which network file systems have to pass on: where
one does not, run one worker.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.plain_files import read_json

STATES = ("pending", "running", "done", "failed")


@dataclass(frozen=True)
class Claim:
    """A piece of work that this process holds."""

    name: str
    descriptor: int


class WorkQueue:
    """Pieces of work by name, below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self, state: str) -> list[str]:
        """What is in a state, by name."""
        folder = self._folder / state
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def add(self, names: Iterable[str]) -> list[str]:
        """Put new work in; what is in any state already stays there.  Returns what was added."""
        with self._alone():
            known = {name for state in STATES for name in self.names(state)}
            added = [name for name in names if name not in known]
            for state in STATES:
                (self._folder / state).mkdir(exist_ok=True)
            for name in added:
                (self._folder / "pending" / name).touch()
            return added

    def claim(self) -> Claim | None:
        """Take the last pending piece by name (the newest checkpoint), or None if there is none."""
        with self._alone():
            self._take_back_abandoned()
            for name in reversed(self.names("pending")):
                if (descriptor := self._lock("pending", name)) is None:
                    continue
                try:
                    os.rename(self._folder / "pending" / name, self._folder / "running" / name)
                except FileNotFoundError:  # removed by hand
                    os.close(descriptor)
                    continue
                return Claim(name, descriptor)
            return None

    def finish(self, claim: Claim, *, failed: bool, record: dict[str, Any]) -> None:
        """Put a claimed piece away with what is to be known of it."""
        path = self._folder / "running" / claim.name
        path.write_text(json.dumps(record, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        with self._alone():
            os.rename(path, self._folder / ("failed" if failed else "done") / claim.name)
        os.close(claim.descriptor)

    def give_back(self, claim: Claim) -> None:
        """Put a claimed piece back, for another worker."""
        with self._alone():
            os.rename(self._folder / "running" / claim.name, self._folder / "pending" / claim.name)
        os.close(claim.descriptor)

    def record(self, state: str, name: str) -> dict[str, Any]:
        """What is known of a piece that was put away."""
        content: dict[str, Any] = read_json(self._folder / state / name)
        return content

    def retry_failed(self) -> list[str]:
        """Put everything that failed back in; returns its names."""
        with self._alone():
            names = self.names("failed")
            for name in names:
                os.rename(self._folder / "failed" / name, self._folder / "pending" / name)
            return names

    def take_back_abandoned(self) -> list[str]:
        """Put back what a process held that is no more; returns its names."""
        with self._alone():
            return self._take_back_abandoned()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else moves a piece meanwhile: seen in neither of two folders, it would be put in a second time, and worked on twice."""
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with _closing(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def _take_back_abandoned(self) -> list[str]:
        taken = []
        for name in self.names("running"):
            if (descriptor := self._lock("running", name)) is None:
                continue
            with _closing(descriptor):
                try:
                    os.rename(self._folder / "running" / name, self._folder / "pending" / name)
                except FileNotFoundError:  # it was finished between listing and locking
                    continue
            taken.append(name)
        return taken

    def _lock(self, state: str, name: str) -> int | None:
        """Descriptor of a piece's file, locked; None if another process holds it or it moved away."""
        try:
            descriptor = os.open(self._folder / state / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
