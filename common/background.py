"""A function that runs in the background, and is not waited for when the main work fails."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")
_LESS = 5  # a third of the processor beside the main work, so that it does not starve on a machine that others use too


class Background(Generic[Result]):
    """Starts a function in a daemon thread; `result` waits for it and gives what it returned, or raises what it raised.

    The function imports nothing: two threads that import at once can wait for each other for ever (in CPython 3.11 when both come to the
    same module by different ways).

    Args:
        yields: whether it leaves the processor to the main work where both want it, as do processes that it starts.
    """

    def __init__(self, function: Callable[[], Result], *, yields: bool = False) -> None:
        self._function = function
        self._yields = yields
        self._result: Result
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._yields and sys.platform == "linux":  # elsewhere a priority is that of the whole process
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _LESS)
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    @property
    def is_done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return not self._thread.is_alive()

    def raise_if_failed(self) -> None:
        """Raise what the function raised, if it has by now; does not wait."""
        if self._error is not None:
            raise self._error

    def result(self) -> Result:
        """Wait for the end."""
        self._thread.join()
        self.raise_if_failed()
        return self._result
