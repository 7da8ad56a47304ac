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
from collections.abc import Callable, Iterator
from multiprocessing import spawn
from typing import Any, NamedTuple

from common import progress
from common.lease import Lease
from data_prep.sharing.tasks import MOST_DEATHS, Done, Leader, Work, Worker, dead_over_one_task

_CHECK_SECONDS = 10.0  # between two looks at the lease while a result is waited for
_START = "start one with `ray start --head` and `ray start --address HEAD:6379` on the other machines, or leave --ray out"
_OF_A_PROCESS = ("sys_path", "sys_argv", "dir", "init_main_from_name", "init_main_from_path")
_ENVIRONMENT = {
    "USE_TORCH": "0",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # of a process that tokenizes


class _Step(NamedTuple):
    """What the tasks of one step have in common: a worker fetches it at the first that it does."""

    number: int
    start: dict[str, Any]  # what Python gives a process of its own: the command's module, its paths and directory
    work: Any  # reference to the pickled function, initializer and its arguments


class RayLeader(Leader):
    """Hands tasks to a cluster.

    Args:
        workers: tasks of one machine at a time, at most.
    """

    def __init__(self, lease: Lease, workers: int) -> None:
        import ray

        super().__init__(lease)
        self._ray = ray
        cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        self._cpus = max(1, -(-max(cpus, default=0) // workers))
        self._num_slots = sum(number // self._cpus for number in cpus)
        if not self._num_slots:
            raise ValueError("the Ray cluster has no CPUs to work with; start a machine of it with `ray start --num-cpus N`")

    def _num_workers(self) -> int:
        return self._num_slots

    def _step(self, number: int, work: Work) -> Callable[[int, Any], Any]:
        start = {key: value for key, value in spawn.get_preparation_data("ray").items() if key in _OF_A_PROCESS}
        step = _Step(number, start, self._ray.put(pickle.dumps(work)))
        do = self._ray.remote(num_cpus=self._cpus, max_retries=MOST_DEATHS - 1, scheduling_strategy="SPREAD")(_do)
        return lambda place, item: do.remote(step, pickle.dumps(item))

    def _done(self, task: Any, name: str) -> Done:
        errors = self._ray.exceptions
        while True:
            try:
                done: Done = pickle.loads(self._ray.get(task, timeout=_CHECK_SECONDS))
                return done
            except errors.GetTimeoutError:
                self.check()
            except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.LocalRayletDiedError) as error:
                raise dead_over_one_task(name) from error
            except errors.RayError as error:
                raise ValueError(f"Ray could not have this worked on: {name}: {_last_line(error)}") from error


_worker: Worker | None = None  # of a process of Ray, which serves one command


def _do(step: _Step, item: bytes) -> bytes:
    """Do one task in a worker of Ray; host, process, what was counted, and the answer."""
    import ray

    global _worker
    if _worker is None:
        spawn.prepare(step.start)  # so that what the command's own module defines is found as `__main__` has it
        _worker = Worker()
    answer = _worker.answer(step.number, lambda: ray.get(step.work), pickle.loads(item))
    done: Done = (answer, progress.take_counted(), socket.gethostname(), os.getpid())
    return pickle.dumps(done)


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
