"""Processes that end with the one that started them, however it ends."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Let this process be killed when its parent ends: it would wait for work forever, and hold what the parent had locked."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
