"""A lease on a directory: one process works in it at a time, and one that has lost it finds out before it writes.

The lease is a file `.lease-0000003` in the directory that names its holder; its number grows by one with every take-over.  Whoever creates the
next number has the lease, and creating a file that must not exist yet is decided by the file system, on NFS and Lustre too, where
locks of the kernel may end at the machine.  A holder that was stopped or cut off meanwhile finds a higher number and writes no more.

Whether a holder is alive: on this machine the process is looked up (Linux); elsewhere its file is watched, whose time the holder renews.  Only
whether that time changes matters, never what it is, because clocks of machines differ.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from common import command
from common.process_identity import boot_id, pid_namespace, start_of

RENEW_SECONDS = 10.0
PATIENCE_SECONDS = 90.0  # without a renewal, after which a holder on another machine counts as gone
_POLL_SECONDS = 0.5
_PREFIX = ".lease-"


class InUseError(ValueError):
    """Another live process works in the directory."""

    exit_code = command.IN_USE


class LeaseLostError(command.StoppedError):
    """Another process has taken over the directory."""

    exit_code = command.LOST


@dataclass(frozen=True)
class Holder:
    """Who has a lease.

    Attributes:
        work: what it does, for people: `recipes.train`.
        launch: name that all processes share which work for the holder, "" where there is one alone.
        boot_id, pid_namespace: tell whether another process is on the same machine, and sees the same process numbers.
        started: clock ticks after boot when the process began, since numbers of processes come again.
        slurm_job, slurm_restart: that it is part of; Slurm starts a job again under the same id.
    """

    work: str
    launch: str
    token: str
    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    started: int
    slurm_job: str | None
    slurm_restart: int

    def __str__(self) -> str:
        job = f" of Slurm job {self.slurm_job}" if self.slurm_job else ""
        return f"{self.work}, process {self.pid} on {self.host}{job}"


def this_process(work: str, *, launch: str = "", environment: Mapping[str, str] = os.environ) -> Holder:
    """This process as a holder."""
    return Holder(
        work=work,
        launch=launch,
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        boot_id=boot_id(),
        pid_namespace=pid_namespace(),
        pid=os.getpid(),
        started=start_of(os.getpid()) or 0,
        slurm_job=environment.get("SLURM_JOB_ID"),
        slurm_restart=int(environment.get("SLURM_RESTART_COUNT", "0")),
    )


class Fence:
    """Tells whether a lease is still what it was; for its holder, and for other processes that work for the holder.

    Args:
        path: of the lease's file.
    """

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token

    @property
    def is_held(self) -> bool:
        """Whether no other process has taken over the directory; looks at the file system.

        A higher number is looked at twice: a candidate whom another one disturbed takes it back within moments.
        """
        if max(_leases(self.path.parent), default=0) > _number(self.path):
            time.sleep(2 * _POLL_SECONDS)
        return max(_leases(self.path.parent), default=0) == _number(self.path) and self._is_there()

    def _is_there(self) -> bool:
        return _token_of(_look(self.path)) == self.token

    def check(self) -> None:
        """Stop before a write that is no longer ours.

        Raises:
            LeaseLostError: naming who has the directory now.
        """
        if not self.is_held:
            raise self.error()

    def error(self) -> LeaseLostError:
        """The sentence of one that has lost the lease, as a fence of another process may have found before this one's sees it."""
        newest = max(_leases(self.path.parent).items(), default=(0, None))[1]
        seen = _look(newest) if newest else None
        by = f" by {seen.holder}" if seen and seen.holder and seen.holder.token != self.token else ""
        return LeaseLostError(f"{self.path.parent} was taken over{by}; this process ends and writes nothing more there")


class Lease(Fence):
    """A lease that this process holds, renewed by a thread until it is released.

    Args:
        made_directory: it was made for the lease, and goes with it if nothing was put there.
    """

    def __init__(self, path: Path, token: str, *, made_directory: bool, renew_seconds: float) -> None:
        super().__init__(path, token)
        self._made_directory, self._renew_seconds, self._ended = made_directory, renew_seconds, threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._ended.wait(self._renew_seconds):
            with contextlib.suppress(OSError):  # a file system that hangs for a while is no reason to end; the file may be gone, too
                os.utime(self.path)

    def release(self) -> None:
        """Release the directory for the next process."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._is_there():
                self.path.unlink()
                if self._made_directory:
                    self.path.parent.rmdir()  # fails where it is not empty

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def take_lease(
    directory: Path,
    holder: Holder,
    *,
    ended_jobs: Collection[str] = (),
    patience_seconds: float = PATIENCE_SECONDS,
    renew_seconds: float = RENEW_SECONDS,
) -> Lease:
    """The lease on a directory, which is made if it is not there.

    A holder is gone if its process on this machine has ended, if Slurm has ended its job, or if it has not renewed for long.

    Args:
        holder: who takes it.
        ended_jobs: of Slurm that are known to have ended, even if a process of theirs lives on at a node that Slurm has lost.

    Raises:
        InUseError: if another live process has it.
    """
    made_directory = not directory.exists()
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        gone: dict[int, str | None] = {}  # number -> token of a lease whose holder is gone
        for number, path in _leases(directory).items():
            seen, is_alive = _watch(path, holder, ended_jobs=ended_jobs, patience_seconds=patience_seconds)
            if is_alive:
                raise InUseError(
                    f"{directory} is in use by {seen.holder if seen and seen.holder else 'another process'};"
                    " wait for its end, end it, or choose another --output"
                )
            if seen is not None:
                gone[number] = _token_of(seen)
        number = max(gone, default=0) + 1
        mine = directory / f"{_PREFIX}{number:07}"
        if not _create(mine, holder):
            continue  # somebody else was faster, or has just removed the empty directory
        now = {other: _token_of(_look(path)) for other, path in _leases(directory).items()}
        if now != {**gone, number: holder.token}:  # somebody has come or gone since, who was not looked at above
            mine.unlink(missing_ok=True)
            time.sleep(random.uniform(0, _POLL_SECONDS))
            continue
        for other in gone:
            (directory / f"{_PREFIX}{other:07}").unlink(missing_ok=True)
        return Lease(mine, holder.token, made_directory=made_directory, renew_seconds=renew_seconds)


def wait_for_lease(directory: Path, launch: str, *, timeout_seconds: float) -> Fence:
    """The lease that another process of the same launch takes.

    Raises:
        InUseError: if it does not come.
    """
    end = time.monotonic() + timeout_seconds
    while time.monotonic() < end:
        for path in _leases(directory).values():
            if (seen := _look(path)) is not None and seen.holder is not None and seen.holder.launch == launch:
                return Fence(path, seen.holder.token)
        time.sleep(_POLL_SECONDS)
    raise InUseError(f"rank 0 did not get the lease on {directory} in {timeout_seconds:.0f} s; its messages say why")


# -- files ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """A lease at some moment; its holder is None while it is being written."""

    holder: Holder | None
    renewed_ns: int


def _leases(directory: Path) -> dict[int, Path]:
    """Number -> file of each lease; all but the highest are of the past."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return {}
    return {int(name.removeprefix(_PREFIX)): directory / name for name in names if name.startswith(_PREFIX) and name[-7:].isdecimal()}


def _number(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def _create(path: Path, holder: Holder) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except (FileExistsError, FileNotFoundError):
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(holder)) + "\n")
    return True


def _look(path: Path) -> _Seen | None:
    """None if it is gone.  Opened each time, because NFS asks its server again then and not otherwise."""
    try:
        with path.open(encoding="utf-8") as stream:
            renewed_ns = os.fstat(stream.fileno()).st_mtime_ns
            text = stream.read()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise
    try:
        return _Seen(Holder(**json.loads(text)), renewed_ns)
    except (ValueError, TypeError):
        return _Seen(None, renewed_ns)


def _token_of(seen: _Seen | None) -> str | None:
    return seen.holder.token if seen is not None and seen.holder is not None else None


def _watch(path: Path, mine: Holder, *, ended_jobs: Collection[str], patience_seconds: float) -> tuple[_Seen | None, bool]:
    """What is seen of a lease, and whether its holder is alive: looked up on this machine, watched for a while if it is elsewhere."""
    first, end = _look(path), time.monotonic() + patience_seconds
    while (seen := _look(path)) is not None and first is not None:
        holder = seen.holder
        if holder is not None:
            if holder.slurm_job in ended_jobs or _was_restarted(holder, mine):
                return seen, False
            if (holder.boot_id, holder.pid_namespace) == (mine.boot_id, mine.pid_namespace) and mine.boot_id:
                return seen, start_of(holder.pid) == holder.started
        if seen.renewed_ns != first.renewed_ns:
            return seen, True
        if time.monotonic() > end:
            return seen, False
        time.sleep(_POLL_SECONDS)
    return None, False


def _was_restarted(before: Holder, after: Holder) -> bool:
    """Whether Slurm has ended a holder and started its job again."""
    return before.slurm_job is not None and before.slurm_job == after.slurm_job and before.slurm_restart < after.slurm_restart
