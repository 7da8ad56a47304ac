"""How tasks are handed out and done, and what becomes of one whose worker dies or that goes wrong: the same for a crew and on Ray."""

from __future__ import annotations

import pickle
import sys
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from common import progress
from common.lease import Lease

MOST_DEATHS = 3  # of workers over one task

Item = TypeVar("Item")
Result = TypeVar("Result")
Answer = tuple[bool, Any]  # whether it is a result; that or the error
Done = tuple[Answer, dict[int, int], str, int]  # the answer; what was counted; host and process
Work = tuple[Callable[[Any], Any], Callable[..., None] | None, tuple[Any, ...]]  # function of a step, initializer, its arguments


class Leader(ABC):
    """Hands the tasks of a command to others and takes their results in order.

    Attributes:
        done_by: tasks by host and process of the worker.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease, self._num_steps = lease, 0
        self.done_by: Counter[tuple[str, int]] = Counter()

    def check(self) -> None:
        """Stop before a step that is no longer this process's.

        Raises:
            LeaseLostError: if another one leads.
        """
        self._lease.check()

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        name: Callable[[Item], str],
        initializer: Callable[..., None] | None,
        initargs: tuple[Any, ...],
    ) -> Iterator[Result]:
        """See `data_prep.sharing.shards.ordered_map`; twice as many tasks as there are workers are at once with them."""
        self._num_steps += 1
        begin = self._step(self._num_steps, (function, initializer, initargs))
        waiting: deque[tuple[Any, str]] = deque()
        for place, item in enumerate(items):
            waiting.append((begin(place, item), name(item)))
            while len(waiting) >= 2 * self._num_workers() + 2:
                yield self._result(*waiting.popleft())
        while waiting:
            yield self._result(*waiting.popleft())

    def _result(self, task: Any, name: str) -> Any:
        (is_result, value), counted, host, process_id = self._done(task, name)
        self.done_by[host, process_id] += 1
        for number, amount in counted.items():
            progress.advance_shared(number, amount)
        if not is_result:
            raise value
        return value

    @abstractmethod
    def _num_workers(self) -> int:
        """Workers that there are now."""

    @abstractmethod
    def _step(self, number: int, work: Work) -> Callable[[int, Any], Any]:
        """Prepare a step; gives what hands out the task of a place and item, and returns by what it is known."""

    @abstractmethod
    def _done(self, task: Any, name: str) -> Done:
        """Wait for a task; its name is for errors."""


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
