"""Progress of long work: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tqdm import tqdm

LOG_INTERVAL_SECONDS = 30.0
_POLL_SECONDS = 0.5


def show(text: str) -> None:
    """A line for who looks on, ahead of what takes seconds to import or to read; a log does not need it."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """In the unit in which it is a small number."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


_numbers = itertools.count()
_shown: weakref.WeakValueDictionary[int, Progress | SharedProgress] = weakref.WeakValueDictionary()
_counted: dict[int, int] = {}


class Counter(Protocol):
    """What counts work."""

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more units as done."""
        ...


class _Elsewhere:
    """A progress in a process that has only a copy of it: counts until it is passed on to the process that shows it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more units as done."""
        _counted[self._number] = _counted.get(self._number, 0) + amount


def take_counted() -> dict[int, int]:
    """What was counted in this process for progress that others show."""
    taken = dict(_counted)
    _counted.clear()
    return taken


def advance_shared(number: int, amount: int) -> None:
    """Count what another process has taken along."""
    if (shown := _shown.get(number)) is not None:
        shown.advance(amount)


class _Shown:
    """What is shown by this process; a pickled copy counts for it (`take_counted`)."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        _shown[self._number] = self  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[_Elsewhere], tuple[int]]:
        return _Elsewhere, (self._number,)


class Progress(_Shown):
    """Counts done work of a known or unknown total.

    On a terminal it is a tqdm bar; elsewhere it writes one line to stderr every 30 seconds, so that a job's log stays short.
    """

    def __init__(self, label: str, *, total: int | None, unit: str, is_bytes: bool = False) -> None:
        super().__init__()
        self._label, self._total, self._unit, self._is_bytes = label, total, unit, is_bytes
        self._done = 0
        self._start = self._last_line = time.monotonic()
        self._bar: tqdm | None = None
        if sys.stderr.isatty():
            from tqdm import tqdm  # only here: importing it takes longer than many conversions

            self._bar = tqdm(total=total, desc=label, unit=unit, unit_scale=is_bytes, dynamic_ncols=True, leave=False)

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more units as done."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(amount)
        elif time.monotonic() - self._last_line >= LOG_INTERVAL_SECONDS:
            self._last_line = time.monotonic()
            print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        seconds = time.monotonic() - self._start
        scale, unit = (1e6, f"M{self._unit}") if self._is_bytes else (1, self._unit)
        text = f"{self._label}: {self._done / scale:.0f}"
        if self._total:
            left = seconds * (self._total - self._done) / max(self._done, 1)
            text += f" of {self._total / scale:.0f} {unit} ({100 * self._done / self._total:.0f} %), {left:.0f} s left"
        else:
            text += f" {unit}"
        return f"{text}, {self._done / scale / seconds:.1f} {unit}/s"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()


class SharedProgress(_Shown):
    """A progress that this process shows and processes forked from it advance."""

    def __init__(self, label: str, *, total: int | None, unit: str, is_bytes: bool = False) -> None:
        super().__init__()
        self._progress = Progress(label, total=total, unit=unit, is_bytes=is_bytes)
        self._done = multiprocessing.get_context("fork").Value("q", 0)
        self._shown = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more units as done, in any process."""
        with self._done.get_lock():
            self._done.value += amount

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            done = self._done.value
            self._progress.advance(done - self._shown)
            self._shown = done

    def __enter__(self) -> SharedProgress:
        self._progress.__enter__()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._progress.__exit__(kind, error, trace)
