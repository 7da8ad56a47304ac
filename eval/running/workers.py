"""Processes that share the requests of one model: a GPU each, or a share of the cores.

What is asked together is decided before, by the process that holds the journal, so answers do not depend on how many processes there are
nor on which of them was free.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context, set_forkserver_preload
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.forkserver import ensure_running
from typing import TYPE_CHECKING, Any

from eval.running.results import GoneError, failure_reason

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from conversion.checkpoints.hf_model import Checkpoint
    from conversion.measuring.bits_per_byte import Nats
    from eval.running.backends import Machine, Settings
    from eval.running.encoding import Encoder, Pair

_END_SECONDS = 10.0
_WINDOWS = "windows"  # of a text; other calls have lm-eval's names


@dataclass(frozen=True)
class Call:
    """Requests that are answered together.

    Attributes:
        kind: of request, lm-eval's name.
        requests: prompts with what comes after them, as lm-eval's instances.
        seed: of what samples them; None where nothing is sampled.
        pairs: token ids of the first requests, where they are known; later requests continue from their contexts, greedily.
    """

    kind: str
    requests: Sequence[Any]
    seed: int | None = None
    pairs: Sequence[Pair] | None = None


Answers = tuple[list[Any], list[bool | None]]  # and whether each text ended by itself


def answer_call(backend: Any, call: Call) -> Answers:
    """What one backend says to a call."""
    if call.pairs is not None:
        return _score_and_go_on(backend, call.pairs, call.requests[len(call.pairs) :])
    if call.seed is not None:
        backend.start_sampling(call.seed)
    answers = getattr(backend, call.kind)(list(call.requests), disable_tqdm=True)
    finished = getattr(backend, "finished", {}) if call.kind == "generate_until" else {}
    return answers, [finished.get(request.args[0]) for request in call.requests]


def _score_and_go_on(backend: Any, pairs: Sequence[Pair], texts: Sequence[Any]) -> Answers:
    scores = backend.score(pairs, going_on=[text.args[0] for text in texts]) if pairs else []
    if not texts:
        return scores, [None] * len(pairs)
    answers, finished = answer_call(backend, Call("generate_until", texts))
    return [*scores, *answers], [*[None] * len(pairs), *finished]


def devices_of_workers(device: str, workers: int) -> list[str]:
    """The device of each worker.

    Raises:
        ValueError: if there are not as many.
    """
    import torch

    if not device.startswith("cuda"):
        return [device] * workers
    if device != "cuda":
        raise ValueError(f"--workers {workers}, but --device {device} is one GPU; give --device cuda, so that each worker uses one")
    if (there := torch.cuda.device_count()) < workers:
        raise ValueError(f"--workers {workers}, but torch sees {there} GPU{'s' * (there != 1)} here; give one worker for each")
    return [f"cuda:{number}" for number in range(workers)]


@dataclass(frozen=True)
class _Worker:
    number: int
    device: str
    process: BaseProcess
    connection: Connection


def import_once(backend: str, device: str) -> None:
    """Let a process begin to import what workers need, from which they are forked: before the first is wanted, so that nobody waits for it."""
    if isinstance(_context(backend, device), ForkServerContext):
        set_forkserver_preload(
            [__name__, "eval.running.hf_backend", "conversion.checkpoints.hf_model", "conversion.measuring.bits_per_byte"]
        )
        ensure_running()


def _context(backend: str, device: str) -> SpawnContext | ForkServerContext:
    """CUDA, and libraries with threads, do not survive a fork, but the process that forks has neither; a GPU is told by the environment of each."""
    return get_context("forkserver") if backend == "hf" and not device.startswith("cuda") else get_context("spawn")


class Workers:
    """A pool that stands for the backend of one model, until the end of the block.

    Attributes:
        max_length: positions of tasks; set before the first request.
        num_parameters: of the model; None where only vLLM has it.
        vocab_size: rows of its embedding matrix.
        encoder: what requests are encoded by before they are sent; None where the processes do that.
    """

    def __init__(
        self, checkpoint: Checkpoint, settings: Settings, machine: Machine, *, devices: Sequence[str], texts: bool, encoder: Encoder | None
    ) -> None:
        import torch

        self.max_length = 0
        self.vocab_size = checkpoint.vocab_size
        self._checkpoint, self._failure = checkpoint, ""
        import_once(settings.backend, devices[0])
        self._encoder = encoder
        self.encoder = encoder if settings.backend == "hf" else None
        context = _context(settings.backend, devices[0])
        threads = max(1, torch.get_num_threads() // len(devices))
        self._workers: list[_Worker] = []
        for number, device in enumerate(devices, start=1):
            ours, theirs = context.Pipe()
            own = replace(machine, device="cuda" if device.startswith("cuda") else device, workers=1)
            arguments = (theirs, checkpoint, settings, own, threads, texts or settings.backend == "hf")
            # vLLM has processes of its own, which a daemon may not have; all leave when the connection is closed, by a kill too.
            daemon = settings.backend == "hf"
            process = context.Process(target=_serve, args=arguments, name=f"eval-worker-{number}", daemon=daemon)
            with _visible_device(device):
                process.start()
            theirs.close()
            self._workers.append(_Worker(number, device, process, ours))
        self.num_parameters: int | None = None

    def __enter__(self) -> Workers:
        """The pool, once every process has the model."""
        try:
            for worker in self._workers:
                answer = self._receive(worker)
                if isinstance(answer, Exception):
                    raise answer
                self.num_parameters = answer
        except BaseException:
            self.__exit__()
            raise
        places = ", ".join(f"{worker.device} (process {worker.process.pid})" for worker in self._workers)
        print(f"{self._checkpoint.name}: {len(self._workers)} workers on {places}", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Processes leave when their connection is closed; one that does not is ended."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(_END_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def tok_encode(self, text: str) -> list[int]:
        """Token ids as lm-eval's backends make them."""
        assert self._encoder is not None, "asked only where there are tasks"
        return self._encoder.tok_encode(text)

    def answer_all(self, calls: Iterable[Call]) -> Iterator[tuple[int, Answers | Exception]]:
        """Number of each call and its answers, or why there are none, as they come; the next call is taken when a process is free.

        Raises:
            GoneError: if a worker was killed, which one.
        """
        stripped = (replace(call, requests=[_without_document(request) for request in call.requests]) for call in calls)
        yield from self._share((self.max_length, call) for call in stripped)

    def window_nats(self, batches: Sequence[Sequence[Any]]) -> Iterator[tuple[int, list[Nats]]]:
        """Number of each batch of windows and what they score, as they come."""
        for number, nats in self._share((0, Call(_WINDOWS, batch)) for batch in batches):
            if isinstance(nats, Exception):
                raise nats
            yield number, nats

    def _share(self, work: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        if self._failure:  # of an earlier task
            raise GoneError(self._failure)
        left = enumerate(work)
        idle, busy = deque(self._workers), dict[Connection, tuple[_Worker, int]]()
        try:
            while True:
                while idle and (following := next(left, None)) is not None:
                    number, message = following
                    worker = idle.popleft()
                    busy[worker.connection] = worker, number
                    with contextlib.suppress(OSError):  # of a dead one: told below, with its reason
                        worker.connection.send(message)
                if not busy:
                    return
                for connection in wait(list(busy)):
                    assert isinstance(connection, Connection), "only connections are waited for"
                    worker, number = busy.pop(connection)
                    answers = self._receive(worker)
                    idle.append(worker)
                    yield number, answers
        finally:
            for connection in busy:  # what the others still say belongs to no later task
                with contextlib.suppress(EOFError, OSError):
                    connection.recv()

    def _receive(self, worker: _Worker) -> Any:
        """What a worker says, or what it raised.

        Raises:
            GoneError: if it is no more.
        """
        try:
            answers, failure = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(_END_SECONDS)
            self._failure = self._end_of(worker)
            raise GoneError(self._failure) from None
        return ValueError(failure) if failure else answers

    def _end_of(self, worker: _Worker) -> str:
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with exit code {code}"
        hint = " (probably out of memory: give fewer --workers or a smaller --batch-size)" if code == -9 else ""
        place = f"worker {worker.number} of {len(self._workers)} on {worker.device} (process {worker.process.pid})"
        return f"{place} {how}{hint}; finished answers are kept, and the same command does the rest"


@contextlib.contextmanager
def _visible_device(device: str) -> Iterator[None]:
    """A process sees the one GPU that is its own, which vLLM cannot be told otherwise."""
    if not device.startswith("cuda:"):
        yield
        return
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = before.split(",") if before else None
    number = int(device.removeprefix("cuda:"))
    os.environ["CUDA_VISIBLE_DEVICES"] = seen[number] if seen else str(number)
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def _without_document(request: Any) -> Any:
    """A request as it is sent: backends read its arguments alone, and documents may be long."""
    from lm_eval.api.instance import Instance

    return Instance(request_type=request.request_type, doc={}, arguments=request.args, idx=request.idx, metadata=request.metadata)


def _serve(connection: Connection, checkpoint: Checkpoint, settings: Settings, machine: Machine, threads: int, loads: bool) -> None:
    """Answer calls until the other side is closed, which a killed parent's is too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the parent ends this process
    from conversion.checkpoints.hf_model import be_quiet_and_offline, load_model
    from conversion.measuring.bits_per_byte import batch_nats

    be_quiet_and_offline()
    import torch

    from eval.running.backends import open_backend

    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            # vLLM has a copy of its own, and scores no texts.
            model = load_model(checkpoint, device=machine.device, dtype=settings.dtype) if loads else None
            connection.send((None if model is None else model.num_parameters(), ""))
        except Exception as error:
            connection.send((None, failure_reason(error)))
            return
        backend: Any = None
        while True:
            positions, call = connection.recv()
            try:
                if call.kind == _WINDOWS:
                    assert model is not None, "asked only where there are texts"
                    connection.send((batch_nats(model, call.requests), ""))
                    continue
                backend = backend or open_backend(model, checkpoint, positions, settings, machine)
                with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
                    found = answer_call(backend, call)
                connection.send((found, ""))
            except Exception as error:
                connection.send((None, failure_reason(error)))
