"""Progress of long work: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tqdm import tqdm

LOG_INTERVAL_SECONDS = 30.0
_POLL_SECONDS = 0.5


class Counter(Protocol):
    """What counts work."""

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more units as done."""
        ...


class Progress:
    """Counts done work of a known or unknown total.

    On a terminal it is a tqdm bar; elsewhere it writes one line to stderr every 30 seconds, so that a job's log stays short.
    """

    def __init__(self, label: str, *, total: int | None, unit: str, is_bytes: bool = False) -> None:
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


class SharedProgress:
    """A progress that this process shows and processes forked from it advance."""

    def __init__(self, label: str, *, total: int | None, unit: str, is_bytes: bool = False) -> None:
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
