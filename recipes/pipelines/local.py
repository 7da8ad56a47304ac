"""A pipeline's tasks as processes of this machine, beside each other where they fit, all ended with the one that started them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from common import command
from common.cli import ROOT
from common.lease import InUseError
from common.process_identity import ProcessIdentity, end_with_parent
from recipes.pipelines.file import Task, command_of, dependencies_of, tasks_of
from recipes.pipelines.machine import Machine, Need, Share, need_of
from recipes.pipelines.running import LOGS_NAME, failure_sentence, last_error, note_end, note_start
from recipes.pipelines.screen import Screen
from recipes.pipelines.work import Work, find_work, remove_unneeded

LOCK_NAME = "run.lock"
_POLL_SECONDS = 0.05
_TAIL_BYTES = 1 << 16  # of a log, in which the error of a failure is
_PATIENCE_SECONDS = 30.0  # for a command to end when it is told to, and for processes of a run that was killed; a training may be saving


@contextlib.contextmanager
def only_run(root: Path) -> Iterator[int]:
    """Be the one run that works in a directory; gives the file that says so, which processes hold that inherit it.

    Raises:
        InUseError: if another one does.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / LOCK_NAME).open("a+", encoding="utf-8") as stream:
        _lock(stream, root)
        stream.truncate(0)
        stream.write(ProcessIdentity.own().label)
        stream.flush()
        yield stream.fileno()


def _lock(stream: IO[str], root: Path) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            stream.seek(0)
            holder = ProcessIdentity.from_label(stream.read())
            # What a run that was killed had started is about to end.
            if holder is None or not holder.is_gone or time.monotonic() > end:
                by = f"by {holder}" if holder is not None else "by another run"
                raise InUseError(f"{root} is in use {by}; wait for it, stop it, or choose another work_dir") from None
            time.sleep(_POLL_SECONDS)


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    share: Share
    log: Path
    log_start: int
    began: float


@dataclass
class LocalRun:
    """The run of a pipeline's work on this machine.

    Attributes:
        expected: seconds of tasks, where they are known.
        failures: task -> what went wrong with it, "" where that was another one, which it needs.
    """

    work: Work
    machine: Machine
    expected: Mapping[Task, float]
    failures: dict[Task, str] = field(default_factory=dict)
    _waiting: list[Task] = field(default_factory=list)
    _running: dict[Task, _Running] = field(default_factory=dict)
    _needs: dict[Task, list[Task]] = field(default_factory=dict)
    _wants: dict[Task, Need] = field(default_factory=dict)
    _signal: int = 0

    def run(self) -> int:
        """Run all tasks that can be; gives an exit code.

        Raises:
            InUseError: if another run works in the pipeline's directory.
            SystemExit: when a signal has ended it; what was running has ended before.
        """
        pipeline = self.work.pipeline
        with only_run(pipeline.root) as lock, self._signals(), Screen(pipeline, self.work.tasks, self.expected) as screen:
            self.work = find_work(pipeline, self.work.choice)  # once more: another run may have come to its end since
            self.work.prepare()
            remove_unneeded(pipeline, among=[task for name in pipeline.stages for task in tasks_of(pipeline, name)])
            (pipeline.root / LOGS_NAME).mkdir(exist_ok=True)
            self._waiting = list(self.work.tasks)
            self._needs = {task: dependencies_of(pipeline, task) for task in self._waiting}
            self._wants = {task: need_of(pipeline, task, self.machine) for task in self._waiting}
            try:
                while (self._waiting or self._running) and not self._signal:
                    self._collect(screen)
                    self._start_what_fits(lock, screen)  # before the page is made anew, which may take seconds
                    screen.draw()
                    time.sleep(_POLL_SECONDS)
            finally:
                self._end_all()
        if self._signal:
            print("stopped; run the same command to resume from here", file=sys.stderr)
            raise SystemExit(128 + self._signal)
        for task, what in self.failures.items():
            if what:
                print(f"error: {failure_sentence(task, what, log=str(self._log(task)))}", file=sys.stderr)
        return command.WRONG if self.failures else command.DONE

    def _start_what_fits(self, lock: int, screen: Screen) -> None:
        for task in list(self._waiting):
            dependencies = self._needs[task]
            if failed := [need for need in dependencies if need in self.failures]:
                self._waiting.remove(task)
                self.failures[task] = ""
                screen.note(task, "not started", f"it needs {failed[0].name}")
            elif not any(need in self._waiting or need in self._running for need in dependencies) and (share := self._share(task)):
                self._waiting.remove(task)
                self._running[task] = self._start(task, share, lock)
                screen.started(task, self._log(task))

    def _share(self, task: Task) -> Share | None:
        """What a task gets of what the others leave; None where that is too little, or as many of its stage run as may."""
        at_once = self.work.pipeline.resources[self.work.pipeline.stages[task.stage].resources].at_once
        if at_once and sum(other.stage == task.stage for other in self._running) >= at_once:
            return None
        need, taken = self._wants[task], [running.share for running in self._running.values()]
        cores = [core for core in self.machine.cores if not any(core in share.cores for share in taken)]
        gpus = [gpu for gpu in self.machine.gpus if not any(gpu in share.gpus for share in taken)]
        memory = self.machine.free_gib - sum(share.memory_gib for share in taken)
        if need.cores > len(cores) or need.gpus > len(gpus) or (taken and need.memory_gib > memory):
            return None
        return Share(tuple(cores[: need.cores]), tuple(gpus[: need.gpus]), need.memory_gib)

    def _start(self, task: Task, share: Share, lock: int) -> _Running:
        words, log = command_of(self.work.pipeline, task), self._log(task)
        note_start(self.work.pipeline, task, log=str(log))

        def prepare() -> None:
            os.sched_setaffinity(0, share.cores)  # by which commands choose how many processes and threads they start
            end_with_parent()

        with log.open("ab") as stream:
            stream.write(f"$ {shlex.join(words)}\n".encode())
            stream.flush()
            start = stream.tell()
            process = subprocess.Popen(
                [sys.executable, *words[1:]],
                cwd=ROOT,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(share.gpus)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock],
                preexec_fn=prepare,
            )
        return _Running(process, share, log, start, time.monotonic())

    def _collect(self, screen: Screen) -> None:
        """Note how those have ended that have."""
        pipeline = self.work.pipeline
        for task, running in list(self._running.items()):
            if running.process.poll() is None:
                continue
            del self._running[task]
            _kill_group(running.process.pid)  # what it left behind must not write beside what follows
            if self._signal:
                continue
            with running.log.open("rb") as stream:
                stream.seek(max(running.log_start, running.log.stat().st_size - _TAIL_BYTES))
                error = last_error(stream.read().decode(errors="replace").splitlines())
            seconds = time.monotonic() - running.began
            try:
                what = note_end(pipeline, task, running.process.returncode, error, log=str(running.log), seconds=round(seconds, 3))
            except ValueError as problem:
                what = f"left an output that cannot be used: {problem}"
            if what is not None:
                self.failures[task] = what
                screen.note(task, "failed", what.removeprefix("failed "))
                continue
            screen.note(task, "done", f"{seconds:.1f} s")
            remove_unneeded(pipeline, among=dependencies_of(pipeline, task))

    def _end_all(self) -> None:
        """Tell what runs to end, and wait for it: a training saves first, and a second signal does not wait for that."""
        received = self._signal
        for running in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGTERM)
        end, self._signal = time.monotonic() + _PATIENCE_SECONDS, 0
        for task, running in self._running.items():
            trains = self.work.pipeline.stages[task.stage].train is not None
            while running.process.poll() is None and not self._signal and (trains or time.monotonic() < end):
                time.sleep(_POLL_SECONDS)
            _kill_group(running.process.pid)
            running.process.wait()
        self._signal = received or self._signal

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def remember(number: int, frame: object) -> None:
            self._signal = number

        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, remember) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _log(self, task: Task) -> Path:
        return self.work.pipeline.root / LOGS_NAME / f"{task.name.replace('/', '_')}.log"


def _kill_group(process_id: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process_id, signal.SIGKILL)
