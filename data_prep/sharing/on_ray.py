"""One command over several machines: with `--ray` this process leads, and the machines of a Ray cluster do the tasks of `ordered_map`.

Ray places the tasks, and gives those of a worker or machine that is gone to others; what they read and write is on a file system that all
machines see.  Results come in the order of the tasks, so the bytes are those of one machine.  When the process that leads or the head of
the cluster is lost, the same command goes on with the shards that are finished.  Arguments and results travel as our own bytes, since
arrays out of Ray's store could not be written to.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import logging
import os
import pickle
import shutil
import signal
import socket
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from common import progress
from common.artifacts import Manifest
from common.lease import Lease, take_lease, this_process
from common.options import add_option

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_DEATHS = 3  # of workers over one task
_CHECK_SECONDS = 10.0  # between two looks at the lease and the cluster while a result is waited for
_START = "start one with `ray start --head` and `ray start --address HEAD:6379` on the other machines, or leave --ray out"
_OF_A_PROCESS = ("sys_path", "sys_argv", "dir", "init_main_from_name", "init_main_from_path")
_ENVIRONMENT = {
    "USE_TORCH": "0",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # of a process that tokenizes
_leads: contextvars.ContextVar[RayLeader | None] = contextvars.ContextVar("leads", default=None)


def add_argument(parser: argparse._ActionsContainer) -> None:
    """The option that gives a command's work to several machines."""
    add_option(
        parser,
        "--ray ADDRESS",
        "distribute the work over this Ray cluster, whose machines share the file system (default: the cluster of this machine);"
        " --workers is the maximum per machine",
        nargs="?",
        const="auto",
    )


def leader() -> RayLeader | None:
    """What hands out the work of this process, if it leads a cluster."""
    return _leads.get()


def share(arguments: argparse.Namespace, stage: str, work: Callable[[], Manifest]) -> Manifest:
    """Do the work, with `--ray` its tasks on a cluster.

    Args:
        arguments: with `output`, `workers` and `ray`.
        stage: the module.

    Raises:
        ValueError: as the work, or if there is no cluster.
        InUseError: if another machine makes this output.
    """
    if arguments.ray is None:
        return work()
    output = Path(os.path.abspath(arguments.output))
    place = output.parent / f".{output.name}.lease"
    with _cluster(arguments.ray), take_lease(place, this_process(stage)) as lease:
        leads = RayLeader(lease, arguments.workers)
        token = _leads.set(leads)
        try:
            manifest = work()
        finally:
            _leads.reset(token)
        shutil.rmtree(place, ignore_errors=True)  # with what a leader left that was killed
    machines = {host for host, _ in leads.done_by}
    print(f"{leads.done_by.total()} tasks were done by {len(leads.done_by)} workers on {', '.join(sorted(machines))}", file=sys.stderr)
    return manifest


class _Step(NamedTuple):
    """What the tasks of one step have in common: a worker fetches it at the first that it does."""

    number: int
    start: dict[str, Any]  # what Python gives a process of its own: the command's module, its paths and directory
    work: Any  # reference to the pickled function, initializer and its arguments


class RayLeader:
    """Hands tasks to a cluster and takes their results in order.

    Args:
        workers: tasks of one machine at a time, at most.

    Attributes:
        done_by: tasks by host and process of the worker.
    """

    def __init__(self, lease: Lease, workers: int) -> None:
        import ray

        self._ray, self._lease, self._workers, self._num_steps = ray, lease, workers, 0
        self._look_at_machines()
        if not self._num_slots:
            raise ValueError("the Ray cluster has no CPUs to work with; start a machine of it with `ray start --num-cpus N`")
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
        start = {key: value for key, value in spawn.get_preparation_data("ray").items() if key in _OF_A_PROCESS}
        step = _Step(self._num_steps, start, self._ray.put(pickle.dumps((function, initializer, initargs))))
        do = self._ray.remote(num_cpus=self._cpus, max_retries=_MOST_DEATHS - 1, scheduling_strategy="SPREAD")(_do)
        waiting: deque[tuple[Any, str]] = deque()
        for item in items:
            waiting.append((do.remote(step, pickle.dumps(item)), name(item)))
            while len(waiting) >= 2 * self._slots() + 2:
                yield self._result(*waiting.popleft())
        while waiting:
            yield self._result(*waiting.popleft())

    def _slots(self) -> int:
        """Tasks that the machines do at once; those that have come or gone count within seconds."""
        if time.monotonic() - self._looked > _CHECK_SECONDS:
            self._look_at_machines()
        return self._num_slots

    def _look_at_machines(self) -> None:
        cpus = [int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]]
        self._cpus = max(1, -(-max(cpus, default=0) // self._workers))
        self._num_slots, self._looked = sum(number // self._cpus for number in cpus), time.monotonic()

    def _result(self, task: Any, name: str) -> Any:
        (is_result, value), counted, host, process_id = pickle.loads(self._answer(task, name))
        self.done_by[host, process_id] += 1
        for number, amount in counted.items():
            progress.advance_shared(number, amount)
        if not is_result:
            raise value
        return value

    def _answer(self, task: Any, name: str) -> Any:
        errors = self._ray.exceptions
        while True:
            try:
                return self._ray.get(task, timeout=_CHECK_SECONDS)
            except errors.GetTimeoutError:
                self.check()
            except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.LocalRayletDiedError) as error:
                raise ValueError(
                    f"{_MOST_DEATHS} worker processes died, killed or out of memory, over one task: {name}; run again with fewer --workers"
                ) from error
            except errors.RayError as error:
                raise ValueError(f"Ray could not have this worked on: {name}: {_last_line(error)}") from error


_ready: tuple[int, Callable[[Any], Any]] | None = None  # step and its function, in a process of Ray, which serves one command


def _do(step: _Step, item: bytes) -> bytes:
    """Do one task in a worker of Ray: whether it has a result, that or the error, what was counted, host and process."""
    global _ready
    try:
        if _ready is None:
            spawn.prepare(step.start)  # so that what the command's own module defines is found as `__main__` has it
        if _ready is None or _ready[0] != step.number:
            import ray

            function, initializer, initargs = pickle.loads(ray.get(step.work))
            if initializer is not None:
                initializer(*initargs)
            _ready = step.number, function
        answer = True, _ready[1](pickle.loads(item))
    except BaseException as error:
        answer = False, _picklable(error)
    return pickle.dumps((answer, progress.take_counted(), socket.gethostname(), os.getpid()))


def _picklable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return RuntimeError(f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[None]:
    """A connection to a cluster, `auto`: the one of RAY_ADDRESS or of this machine.

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
    """Refuse at once a HOST:PORT that does not answer; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"--ray {address}: no answer ({error}); {_START}") from error


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else type(error).__name__
