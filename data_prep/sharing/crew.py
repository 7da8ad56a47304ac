"""One command on several machines: each is given the same words with --shared, one of them leads, and the others work for it until the output is there.

Who has the lease on `.OUTPUT.crew` (common/lease.py) runs the command; what it would hand to processes of its own (`ordered_map`) it lays
out there as files, one for each task, and every worker of every machine takes one by renaming it, does it, and leaves the result.  A worker
that has not been heard of loses its task to another; when the leader is gone, another machine takes the lease and goes on with what is
finished, as soon as nobody works for the old leader any more.  So nothing has to be started, addressed or open but a directory that all
see, and no process is one that may not die.  Results come in the order of the tasks, so the bytes are those of one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from common import command, progress
from common.artifacts import MANIFEST_NAME, Manifest, jsonable, read_manifest
from common.lease import PATIENCE_SECONDS, RENEW_SECONDS, Holder, InUseError, Lease, take_lease, this_process
from common.own_children import end_with_parent
from common.process_identity import boot_id, pid_namespace, start_of
from data_prep.sharing import on_ray
from data_prep.sharing.tasks import MOST_DEATHS, Done, Leader, Work, Worker, dead_over_one_task

_OPEN, _TAKEN, _DONE, _MEMBERS, _ENDED = "open", "taken", "done", "members", "ended"
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.02, 1.0  # between two looks at a directory
_LOOK_AFTER_SECONDS = 2.0  # between two looks at who is alive
_leads: contextvars.ContextVar[Leader | None] = contextvars.ContextVar("leads", default=None)


class EndedError(command.StoppedError):
    """The machine that leads has ended without an output."""


def add_argument(parser: argparse._ActionsContainer) -> None:
    """The options that let machines share a command."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--shared",
        action="store_true",
        help="share the work with all machines that are given this same command, on a directory that all of them see; --workers is of each",
    )
    how.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="give the work to the machines of this Ray cluster, which see the same directories (default: the one of this machine);"
        " --workers is of each, at most",
    )


def leader() -> Leader | None:
    """What hands out the work of this process, if it leads a crew."""
    return _leads.get()


class Made(NamedTuple):
    """A complete output, and whether this process made it or another one has led."""

    manifest: Manifest
    has_led: bool


def share(arguments: argparse.Namespace, stage: str, work: Callable[[], Manifest]) -> Made:
    """Do the work; with `--shared` lead it, or work for who leads, until its output is complete; with `--ray` lead it on a cluster.

    Args:
        arguments: with `output`, `workers`, `shared` and `ray`.
        stage: the module.

    Raises:
        ValueError: as the work, or the leader's sentence.
    """
    output = Path(os.path.abspath(arguments.output))
    place = output.parent / f".{output.name}.crew"
    if arguments.ray is not None:
        with on_ray.cluster(arguments.ray), take_lease(place, this_process(stage), patience_seconds=PATIENCE_SECONDS) as lease:
            made = Made(_led(on_ray.RayLeader(lease, arguments.workers), work), True)
            shutil.rmtree(place, ignore_errors=True)  # with what a leader left that was killed
            return made
    if not arguments.shared:
        return Made(work(), True)
    with _Workers(place, arguments.workers) as workers:
        while not _is_complete(output, stage, arguments):
            try:
                lease = take_lease(place, this_process(stage), patience_seconds=PATIENCE_SECONDS)
            except InUseError:
                workers.serve_until_change(output)
                continue
            with lease:
                if _is_complete(output, stage, arguments):
                    shutil.rmtree(place, ignore_errors=True)
                    break
                return Made(_lead(lease, place, workers, work), True)
    _clear(place, stage)
    manifest = read_manifest(output)
    assert manifest is not None
    return Made(manifest, False)


def _lead(lease: Lease, place: Path, workers: _Workers, work: Callable[[], Manifest]) -> Manifest:
    board = _Board.new(place, lease)
    workers.serve(board)
    try:
        manifest = _led(CrewLeader(lease, board, workers), work)
    except BaseException as error:
        board.end(str(error) or type(error).__name__)
        workers.stop()
        if not board.num_members():  # nobody else has come who would be told
            shutil.rmtree(place, ignore_errors=True)
        raise
    workers.stop()
    shutil.rmtree(place, ignore_errors=True)
    return manifest


def _led(leads: Leader, work: Callable[[], Manifest]) -> Manifest:
    """Do the work, its tasks by those whom somebody leads, and say who they were."""
    token = _leads.set(leads)
    try:
        manifest = work()
    finally:
        _leads.reset(token)
    machines = {host for host, _ in leads.done_by}
    print(f"{leads.done_by.total()} tasks were done by {len(leads.done_by)} workers on {', '.join(sorted(machines))}", file=sys.stderr)
    return manifest


def _clear(place: Path, stage: str) -> None:
    """Remove what a leader left that was killed behind the last step, its output complete; one that is alive does so itself."""
    if place.exists():
        with contextlib.suppress(InUseError), take_lease(place, this_process(stage), patience_seconds=PATIENCE_SECONDS):
            shutil.rmtree(place, ignore_errors=True)


def _is_complete(output: Path, stage: str, arguments: argparse.Namespace) -> bool:
    """Whether the output is what this command makes; another one is left to the command's own refusal."""
    if not (output / MANIFEST_NAME).exists():
        return False
    manifest = read_manifest(output)
    assert manifest is not None
    mine = {key: jsonable(value) for key, value in vars(arguments).items()}
    return manifest.stage == stage and all(manifest.arguments.get(key) == value for key, value in mine.items() if key != "workers")


# -- who leads -----------------------------------------------------------------------------------------------------------


class CrewLeader(Leader):
    """Lays tasks out as files, for all workers of all machines."""

    def __init__(self, lease: Lease, board: _Board, workers: _Workers) -> None:
        super().__init__(lease)
        self._board, self._workers = board, workers
        self._looked_after = time.monotonic()
        self._deaths: Counter[str] = Counter()
        self._watch = workers.watch
        board.wait_for_the_others_end(self._watch, lease)

    def _num_workers(self) -> int:
        return self._board.num_members()

    def _step(self, number: int, work: Work) -> Callable[[int, Any], str]:
        step = f"{number:04d}"
        self._board.write(step, work)

        def begin(place: int, item: Any) -> str:
            task = f"{step}-{place:08d}"
            self._board.write(f"{_OPEN}/{task}", item)
            return task

        return begin

    def _done(self, task: str, name: str) -> Done:
        pause = _SHORTEST_SECONDS
        while (done := self._board.answer(task)) is None:
            if time.monotonic() - self._looked_after > _LOOK_AFTER_SECONDS:
                self._look_after(task, name)
            time.sleep(pause)
            pause = min(_LONGEST_SECONDS, 1.2 * pause)
        return done

    def _look_after(self, task: str, name: str) -> None:
        """Give the tasks of workers that are gone to others.

        Raises:
            ValueError: if one task has cost several workers.
        """
        self.check()
        self._workers.replace_the_dead()
        for gone in self._board.return_tasks(self._watch):
            self._deaths[gone] += 1
        if self._deaths[task] >= MOST_DEATHS:
            raise dead_over_one_task(name)
        self._looked_after = time.monotonic()


class _Watch:
    """Tells whether a process is alive: looked up on this machine, elsewhere by the time of its file, which it renews; only changes of it count."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        self._mine = (boot_id(), pid_namespace())

    def is_gone(self, path: Path) -> bool:
        try:
            with path.open(encoding="utf-8") as stream:
                renewed = os.fstat(stream.fileno()).st_mtime_ns
                holder = Holder(**json.load(stream))
        except FileNotFoundError:
            return True
        if (holder.boot_id, holder.pid_namespace) == self._mine and self._mine[0]:
            return start_of(holder.pid) != holder.started
        before = self._seen.get(path.name)
        if before is None or before[0] != renewed:
            self._seen[path.name] = (renewed, time.monotonic())
            return False
        return time.monotonic() - before[1] > PATIENCE_SECONDS


# -- files ---------------------------------------------------------------------------------------------------------------


class _Board:
    """The tasks of one leader, in a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def new(cls, place: Path, lease: Lease) -> _Board:
        """An empty one, above all that there were."""
        hidden = place / f".board-{lease.token}"
        for name in (_OPEN, _TAKEN, _DONE, _MEMBERS):
            (hidden / name).mkdir(parents=True)
        path = place / f"board-{int(lease.path.name[-7:]):07d}-{lease.token[:8]}"
        os.replace(hidden, path)
        return cls(path)

    @classmethod
    def newest(cls, place: Path) -> _Board | None:
        """The one of who leads, or has led last."""
        boards = sorted(place.glob("board-*"))
        return cls(boards[-1]) if boards else None

    def wait_for_the_others_end(self, watch: _Watch, lease: Lease) -> None:
        """Wait until nobody works for a leader of before, and remove what it left: their files would meet those of this one."""
        for other in self.path.parent.glob("board-*"):
            if other != self.path:
                while not all(watch.is_gone(member) for member in (other / _MEMBERS).glob("*")):
                    time.sleep(0.2)
                    lease.check()
                shutil.rmtree(other)

    def write(self, name: str, value: object) -> None:
        """Write a file that is whole or not there."""
        path = self.path / name
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.write_bytes(pickle.dumps(value))
        os.replace(partial, path)

    def end(self, sentence: str) -> None:
        """Say that there will be no output."""
        with contextlib.suppress(OSError):
            self.write(_ENDED, sentence)

    def ended(self) -> str | None:
        """Why there will be no output, if that is so."""
        with contextlib.suppress(FileNotFoundError):
            return str(pickle.loads((self.path / _ENDED).read_bytes()))
        return None

    def num_members(self) -> int:
        """Workers that have come."""
        return len(os.listdir(self.path / _MEMBERS))

    def answer(self, task: str) -> Done | None:
        """The answer to a task; None while it is not there."""
        path = self.path / _DONE / task
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        path.unlink()
        return pickle.loads(content)  # type: ignore[no-any-return]

    def return_tasks(self, watch: _Watch) -> list[str]:
        """Lay out the tasks again that workers had who are gone, and name them."""
        returned = []
        for path in (self.path / _TAKEN).iterdir():
            task, _, holder = path.name.partition(".")
            if watch.is_gone(self.path / _MEMBERS / holder):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(path, self.path / _OPEN / task)
                    returned.append(task)
        for member in (self.path / _MEMBERS).iterdir():
            if watch.is_gone(member):
                member.unlink(missing_ok=True)
        return returned

    def take(self, member: str) -> tuple[str, Any] | None:
        """The first task that nobody has."""
        for task in sorted(name for name in os.listdir(self.path / _OPEN) if not name.startswith(".")):
            mine = self.path / _TAKEN / f"{task}.{member}"
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path / _OPEN / task, mine)
            if mine.exists():  # a server that answers twice may call a rename failed that was not
                return task, pickle.loads(mine.read_bytes())
        return None

    def give_back(self, task: str, member: str, done: Done) -> None:
        """Leave the answer to a task."""
        self.write(f"{_DONE}/{task}", done)
        (self.path / _TAKEN / f"{task}.{member}").unlink(missing_ok=True)


# -- who works -----------------------------------------------------------------------------------------------------------


class _Workers:
    """The worker processes of this machine, all for one board; those that die are replaced."""

    def __init__(self, place: Path, number: int) -> None:
        self._place, self._number = place, number
        self._board: _Board | None = None
        self.watch = _Watch()
        self._processes: list[Any] = []

    def serve(self, board: _Board) -> None:
        """Work for a board, and no more for another."""
        self.stop()
        self._board = board
        self.replace_the_dead()

    def replace_the_dead(self) -> None:
        """Start as many as there shall be."""
        assert self._board is not None
        fork = multiprocessing.get_context("fork")
        dead = [process for process in self._processes if not process.is_alive()]
        self._forget(dead)
        self._processes = [process for process in self._processes if process not in dead]
        while len(self._processes) < self._number:
            process = fork.Process(target=_serve, args=(self._board,), daemon=True)
            process.start()
            self._processes.append(process)

    def serve_until_change(self, output: Path) -> None:
        """Work for who leads as long as it may be there.

        Raises:
            EndedError: with its sentence, if it has ended without an output.
        """
        board = _Board.newest(self._place)
        if board is None:
            time.sleep(_LONGEST_SECONDS)
            return
        if self._board is None or board.path != self._board.path:
            self.serve(board)
        for member in (board.path / _MEMBERS).glob("*"):
            self.watch.is_gone(member)  # so that it is known for how long it has been silent, should this machine lead next
        end = time.monotonic() + RENEW_SECONDS
        while time.monotonic() < end and not output.exists():
            if (sentence := board.ended()) is not None:
                raise EndedError(f"{self._place}: who led has ended: {sentence}")
            newest = _Board.newest(self._place)
            if newest is None or newest.path != board.path:
                self.stop()
                return
            self.replace_the_dead()
            time.sleep(_LONGEST_SECONDS / 4)

    def stop(self) -> None:
        """End all, so that nothing is written any more, and say so."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._forget(self._processes)
        self._processes, self._board = [], None

    def _forget(self, ended: list[Any]) -> None:
        """Take processes of this machine that have ended off the board, for a leader elsewhere cannot look them up."""
        for process in ended:
            if self._board is not None:
                for path in (self._board.path / _MEMBERS).glob(f"*-{process.pid}"):
                    if _is_of_this_machine(path):
                        path.unlink(missing_ok=True)

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _is_of_this_machine(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError, TypeError):
        holder = Holder(**json.loads(path.read_text(encoding="utf-8")))
        return (holder.boot_id, holder.pid_namespace) == (boot_id(), pid_namespace())
    return False


def _serve(board: _Board) -> None:
    """Take tasks and do them until this process is ended."""
    end_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library's threads do not survive a fork: it would wait for them forever
    _leads.set(None)
    with contextlib.suppress(FileNotFoundError):  # the board is gone: so is the work
        member, host = _join(board), socket.gethostname()
        worker, pause = Worker(), _SHORTEST_SECONDS
        while True:
            taken = board.take(member)
            if taken is None:
                time.sleep(pause)
                pause = min(_LONGEST_SECONDS, 1.2 * pause)
                continue
            pause, (task, item) = _SHORTEST_SECONDS, taken
            phase = task.partition("-")[0]
            answer = worker.answer(phase, (board.path / phase).read_bytes, item)
            board.give_back(task, member, (answer, progress.take_counted(), host, os.getpid()))


def _join(board: _Board) -> str:
    """Come to a board under a name of one's own, and renew it from now on."""
    holder = this_process("worker")
    member = f"{holder.token}-{holder.pid}"
    partial = board.path / f".{member}.partial"
    partial.write_text(json.dumps(asdict(holder)), encoding="utf-8")
    path = board.path / _MEMBERS / member
    os.replace(partial, path)

    def renew() -> None:
        last = time.monotonic()
        while True:
            time.sleep(RENEW_SECONDS)
            if time.monotonic() - last > PATIENCE_SECONDS / 2:  # stopped so long that others may have the task
                os._exit(1)
            last = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(path)

    threading.Thread(target=renew, daemon=True).start()
    return member
