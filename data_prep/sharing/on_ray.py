"""One command on a Ray cluster that is there already: this process leads, and the tasks that `crew` would lay out as files are Ray's.

Ray places the tasks, and gives those of a worker or machine that is gone to others; what they read and write is on a file system that all
machines see, as with `--shared`.  The process that leads, and the head of the cluster, may not die: then the same command goes on with
the shards that are finished.  Arguments and results travel as our own bytes, since arrays out of Ray's store could not be written to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import spawn
from typing import Any, NamedTuple, TypeVar

from common import progress
from common.lease import Lease
from data_prep.sharing.tasks import MOST_DEATHS, Worker, dead_over_one_task, value_of

Item = TypeVar("Item")
Result = TypeVar("Result")

_CHECK_SECONDS = 10.0  # between two looks at the lease while a result is waited for
_START = "start one with `ray start --head` and `ray start --address HEAD:6379` on the other machines, or leave --ray out"
_OF_A_PROCESS = ("sys_path", "sys_argv", "dir", "init_main_from_name", "init_main_from_path")
_ENVIRONMENT = {
    "USE_TORCH": "0",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # of a process that tokenizes


class _Phase(NamedTuple):
    """What the tasks of one step have in common: a worker fetches it at the first that it does."""

    number: int
    start: dict[str, Any]  # what Python gives a process of its own: the command's module, its paths and directory
    work: Any  # reference to the pickled function, initializer and its arguments


class RayLeader:
    """Hands tasks to a cluster and takes their results in order.

    Args:
        workers: tasks of one machine at a time, at most.
    """

    def __init__(self, lease: Lease, workers: int) -> None:
        import ray

        self._ray, self._lease = ray, lease
        self.done_by: Counter[tuple[str, int]] = Counter()  # host and process
        self._num_phases = 0
        cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        self._cpus = max(1, -(-max(cpus, default=0) // workers))
        self._num_workers = sum(number // self._cpus for number in cpus)
        if not self._num_workers:
            raise ValueError("the Ray cluster has no CPUs to work with; start a machine of it with `ray start --num-cpus N`")

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
        """See `data_prep.sharing.shards.ordered_map`; the cluster does the items, twice as many as it has workers are at once."""
        self._num_phases += 1
        start = {key: value for key, value in spawn.get_preparation_data("ray").items() if key in _OF_A_PROCESS}
        phase = _Phase(self._num_phases, start, self._ray.put(pickle.dumps((function, initializer, initargs))))
        do = self._ray.remote(num_cpus=self._cpus, max_retries=MOST_DEATHS - 1, scheduling_strategy="SPREAD")(_do)
        waiting: deque[tuple[Any, Item]] = deque()
        remaining, is_more = iter(items), True
        while waiting or is_more:
            while is_more and len(waiting) < 2 * self._num_workers + 2:
                try:
                    item = next(remaining)
                except StopIteration:
                    is_more = False
                    break
                waiting.append((do.remote(phase, pickle.dumps(item)), item))
            if waiting:
                yield self._result(*waiting.popleft(), name)

    def _result(self, task: Any, item: Item, name: Callable[[Item], str]) -> Any:
        errors = self._ray.exceptions
        while True:
            try:
                host, process_id, counted, answer = pickle.loads(self._ray.get(task, timeout=_CHECK_SECONDS))
                break
            except errors.GetTimeoutError:
                self.check()
            except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.LocalRayletDiedError) as error:
                raise dead_over_one_task(name(item)) from error
            except errors.RayError as error:
                raise ValueError(f"Ray could not have this worked on: {name(item)}: {_last_line(error)}") from error
        self.done_by[host, process_id] += 1
        for number, amount in counted.items():
            progress.advance_shared(number, amount)
        return value_of(answer)


_worker: Worker | None = None  # of a process of Ray, which serves one command


def _do(phase: _Phase, item: bytes) -> bytes:
    """Do one task in a worker of Ray; host, process, what was counted, and the answer."""
    import ray

    global _worker
    if _worker is None:
        spawn.prepare(phase.start)  # so that what the command's own module defines is found as `__main__` has it
        _worker = Worker()
    answer = _worker.answer(phase.number, lambda: ray.get(phase.work), pickle.loads(item))
    return pickle.dumps((socket.gethostname(), os.getpid(), progress.take_counted(), answer))


@contextlib.contextmanager
def cluster(address: str) -> Iterator[None]:
    """A connection to a cluster, `auto`: the one of this machine.

    Raises:
        ValueError: if none answers there, or one of another release of Ray or Python.
    """
    try:
        import ray
    except ImportError:
        raise ValueError(f"--ray {address}: the package ray is not installed; `pip install ray`, or leave --ray out") from None
    _require_listener(address)
    ours = {name: value for name, value in os.environ.items() if name.startswith("SCION_")}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": {**_ENVIRONMENT, **ours}})
    except ConnectionError as error:
        raise ValueError(f"--ray {address}: no Ray is found there; {_START}") from error
    except (RuntimeError, ValueError, OSError) as error:
        raise ValueError(f"--ray {address}: there is no Ray cluster to work on: {_last_line(error)}; {_START}") from error
    signal.signal(signal.SIGTERM, before)  # Ray's own would end the process without our sentence
    try:
        yield
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Refuse HOST:PORT where nobody listens at once; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"--ray {address}: nobody answers there ({error}); {_START}") from error


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else type(error).__name__
