"""Work of less than a millisecond shared among threads, as compiled loops can be, which let other threads run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from common.devices import num_threads


class ShortWork:
    """One pool of threads for all calls: to start a thread takes as long as some of the work."""

    def __init__(self) -> None:
        self._num = num_threads()
        self._others = ThreadPoolExecutor(max(1, self._num - 1))

    def __call__(self, num: int, work: Callable[[int, int], object]) -> None:
        """Do `num` pieces: `work` is given the first of some, and the one behind their last; the calling thread does its share."""
        edges = [num * part // self._num for part in range(self._num + 1)]
        parts = [(first, last) for first, last in pairwise(edges) if first < last]
        waiting = [self._others.submit(work, *part) for part in parts[1:]]
        if parts:
            work(*parts[0])
        for done in waiting:
            done.result()
