"""A watchdog for runs that hang: where no step ends for many times the usual time, the stacks of all ranks are written and the run ends.

Every rank watches itself with a thread.  A rank that hangs keeps the others waiting in the same step, so all find it out within moments of each
other; each writes its stacks at once and ends a little later, because the first that ends takes the others with it.

Counted are the thread's own ticks, each as long as it was meant to be, so that a process that was stopped or got no processor, or a machine that
slept, is not taken for one that hangs.
"""

from __future__ import annotations

import faulthandler
import math
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common import command
from recipes.rules.schema import RunRecipe

_FIRST_STEPS = 5  # which compile, fill caches and find their memory
_STEPS_KEPT = 50  # whose median is the usual time
_TICK_SECONDS = 0.5
_TIMEOUT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
_GRACE_SECONDS = 30.0  # for the stacks of ranks that notice later


class Watchdog:
    """Watches the steps of one rank, and what comes between them.

    Args:
        factor: of the usual time, which a step may take.
        least_seconds: that every step may take.
        other_seconds: that may be taken by what has no usual time yet: the start, the first steps, a validation, a save, the end.
        end: what happens with the sentence; by default stacks are written and the process ends with `command.HUNG`.
    """

    def __init__(
        self, *, factor: float, least_seconds: float, other_seconds: float, rank: int, end: Callable[[str], None] | None = None
    ) -> None:
        self._factor, self._least_seconds, self._other_seconds, self._rank = factor, least_seconds, other_seconds, rank
        self._end = end or self._write_stacks_and_end
        self._steps: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._num_steps = 0
        self._longest: dict[str, float] = {}  # of what comes between the steps
        self._what, self._counted, self._begun = "the start", 0.0, time.monotonic()
        self._step_start, self._between = time.monotonic(), 0.0  # seconds of the step that went to something else
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def __deepcopy__(self, memo: object) -> Watchdog:
        return self  # NeMo copies callbacks to write their arguments down; a thread has no copy

    def step_ended(self, step: int) -> None:
        """Note the end of a step, counted from 1; the next begins."""
        now = time.monotonic()
        self._num_steps += 1
        if self._num_steps > _FIRST_STEPS:
            self._steps.append(now - self._step_start - self._between)
        self._step_start, self._between = now, 0.0
        self._begin(f"step {step + 1}")

    def ends(self) -> None:
        """Note that no more steps come."""
        self._begin("the end")

    @contextmanager
    def other_work(self, what: str) -> Iterator[None]:
        """What is done between steps has a measure of its own."""
        start, before = time.monotonic(), self._what
        self._begin(what)
        yield
        seconds = time.monotonic() - start
        self._longest[what] = max(self._longest.get(what, 0.0), seconds)
        self._between += seconds
        self._begin(before)

    def _begin(self, what: str) -> None:
        self._what, self._counted, self._begun = what, 0.0, time.monotonic()
        allowed = self._allowed()[0]
        if math.isinf(allowed):
            return
        # For an interpreter that is stuck so deep that not even the thread below gets to run; other ranks then end the run.
        faulthandler.dump_traceback_later(allowed + _grace(allowed) / 2)

    def _allowed(self) -> tuple[float, str]:
        """Seconds for what is being done, and why so many."""
        if self._what.startswith("step "):
            if not self._steps:
                return self._other_seconds, "as the first steps may"
            usual = statistics.median(self._steps)
            return max(self._least_seconds, self._factor * usual), f"steps usually take {usual:.3g} s"
        longest = self._longest.get(self._what)
        if longest is None:
            return self._other_seconds, "as the first time may"
        return max(self._other_seconds, self._factor * longest), f"the longest took {longest:.3g} s"

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(_TICK_SECONDS):
            now = time.monotonic()
            self._counted += min(now - max(last, self._begun), _TICK_SECONDS)
            last = now
            allowed, why = self._allowed()
            if self._counted > allowed:
                self._end(f"{self._what} did not end in {self._counted:.0f} s ({why})")
                return

    def _write_stacks_and_end(self, sentence: str) -> None:
        faulthandler.cancel_dump_traceback_later()
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            stacks = file.read().decode(errors="replace")
        name = f"rank {self._rank} on {socket.gethostname()}"
        text = f"error: {name} hangs: {sentence}; the same command resumes from the newest checkpoint; its stacks:\n{stacks}"
        sys.stderr.flush()
        os.write(sys.stderr.fileno(), text.encode())  # in one piece, as other ranks write too
        time.sleep(_grace(self._allowed()[0]))
        os._exit(command.HUNG)


def watching(run: RunRecipe, *, rank: int) -> Watchdog:
    """The watchdog of a rank, by the recipe."""
    return Watchdog(
        factor=math.inf if run.hang_factor is None else run.hang_factor,
        least_seconds=run.hang_seconds,
        other_seconds=math.inf if run.hang_factor is None else run.hang_other_seconds,
        rank=rank,
    )


def outlast(run: RunRecipe) -> None:
    """Have NCCL and gloo wait for longer than the watchdogs of a run: they would end it without stacks, after ten minutes by default.

    NeMo takes the timeout of its process groups from the same variable as torch that of NCCL's heartbeat.
    """
    if run.hang_factor is not None:
        seconds = max(int(os.environ.get(_TIMEOUT, "0")), math.ceil(silence(run)))
        os.environ[_TIMEOUT] = str(seconds)


def silence(run: RunRecipe) -> float:
    """Seconds after which the watchdogs have ended what has no usual time, with room for steps that are usually long."""
    longest = max(run.hang_seconds, run.hang_other_seconds)
    return 2 * (longest + _grace(longest))


def _grace(allowed: float) -> float:
    return min(_GRACE_SECONDS, allowed) + 0.05 * allowed  # what is usual differs a little between ranks
