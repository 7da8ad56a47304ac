"""What one worker does with a task, and what becomes of it where its worker dies or it goes wrong: the same for a crew and on Ray."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

MOST_DEATHS = 3  # of workers over one task

Answer = tuple[bool, Any]  # whether it is a result; that or the error


class Worker:
    """Does the tasks of one step after another; what a step needs is made ready at the first of its tasks."""

    def __init__(self) -> None:
        self._step: object = None
        self._function: Callable[[Any], Any] | None = None

    def answer(self, step: object, work: Callable[[], bytes], item: Any) -> Answer:
        """The result of a task, or its error in a form that travels.

        Args:
            work: gives the pickled function of the step, its initializer (or None) and the arguments of that.
        """
        try:
            if self._function is None or self._step != step:
                self._function, initializer, initargs = pickle.loads(work())
                if initializer is not None:
                    initializer(*initargs)
                self._step = step
            assert self._function is not None
            return True, self._function(item)
        except BaseException as error:
            return False, _picklable(error)


def value_of(answer: Answer) -> Any:
    """The result, or its error raised where the results are taken."""
    is_result, value = answer
    if not is_result:
        raise value
    return value


def dead_over_one_task(name: str) -> ValueError:
    """The sentence of a task that has cost several workers."""
    return ValueError(
        f"{MOST_DEATHS} worker processes died, killed or out of memory, over one task: {name}; run again with fewer --workers"
    )


def _picklable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return RuntimeError(f"{type(error).__name__}: {error}")
