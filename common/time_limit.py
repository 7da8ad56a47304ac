"""A limit to what somebody else's program in a file may take, such as the loops of a chat template."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float, sentence: str) -> Iterator[None]:
    """A block that ends with a sentence when it takes longer; in the main thread, as signals reach no other.

    Raises:
        ValueError: with the sentence.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: object) -> None:
        raise ValueError(sentence)

    before = signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, before)
