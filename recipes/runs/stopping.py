"""Asking a run to save or to end: signals that a scheduler sends before the time limit, and files that colleagues put into its directory."""

from __future__ import annotations

import signal
from collections.abc import Sequence

SAVE_FILE, EXIT_FILE = "save", "exit"


class StopSignals:
    """Remembers that one of some signals came, so that the run can end after the step that it is in.

    Attributes:
        received: its number; 0 if none came.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._signals = [signal.Signals[name] for name in names]
        self.received = 0

    def listen(self) -> None:
        """Handle the signals from now on; called again where a library has taken one of them."""
        for number in self._signals:
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: object) -> None:
        self.received = number


def unknown_signals(names: Sequence[str]) -> list[str]:
    """Names that are not a signal which a process can handle."""
    return [name for name in names if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP")]
