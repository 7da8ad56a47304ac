"""Runs a function on several gloo processes and gives back what each rank returned.

Importing NeMo takes far longer than what tests do with it.  So it is imported once, by a process from which the ranks of every call
are forked; it starts with the first call and ends with the tests.  Another one has a stand-in for TransformerEngine.  Each process of
`pytest -n` has its own.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.processes import ROOT

START_SECONDS = 600
_parents: dict[str, subprocess.Popen[str]] = {}  # by the version of TransformerEngine, or ""


def run_on_gloo(
    function: str,
    *,
    world_size: int,
    directory: Path,
    timeout_seconds: float = 600,  # on a machine that does much else
    initialize: bool = True,
    transformer_engine: str = "",
    **arguments: Any,
) -> list[Any]:
    """Call `module:function(**arguments)` on every rank, inside Megatron's parallel state.

    Args:
        initialize: False for functions that set up process groups and parallel state themselves, as training does.
        directory: for what the ranks write to stdout and stderr, and what they return.
        timeout_seconds: after which all of them are killed.
        transformer_engine: version that a stand-in stands for, with "+apex" behind it for that one too; none by default.
        arguments: JSON values; `tensor_parallel_size` (default: all ranks) is used for the layout and passed on.

    Returns:
        The JSON value that each rank returned.
    """
    from torch.distributed import TCPStore  # here, since collecting the tests needs no torch

    directory.mkdir(parents=True, exist_ok=True)
    arguments = {"tensor_parallel_size": world_size, **arguments}
    # The ranks meet in a store of ours, as in that of torchrun's agent: a port that is free now may not be when rank 0 would take it.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    call = {"function": function, "arguments": arguments, "directory": str(directory), "world_size": world_size, "port": store.port}
    call["initialize"] = initialize
    parent = _running_parent(transformer_engine)
    assert parent.stdin is not None
    parent.stdin.write(json.dumps(call) + "\n")
    parent.stdin.flush()
    answered, answer = _answer(parent, timeout_seconds)
    logs = "".join(path.read_text(errors="replace")[-3000:] for path in sorted(directory.glob("rank_*.log")))
    if not answer:
        _end_parents()
        raise AssertionError(f"the ranks {'died' if answered else f'were still running after {timeout_seconds} s'}\n{logs}")
    assert answer == "done\n", f"{answer}{logs}"
    return [json.loads((directory / f"rank_{rank}.json").read_text()) for rank in range(world_size)]


def _running_parent(transformer_engine: str) -> subprocess.Popen[str]:
    if not _parents:
        atexit.register(_end_parents)
    if transformer_engine not in _parents:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "tests.gloo", transformer_engine]
        _parents[transformer_engine] = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        # On a busy machine its imports take longer than the call that needs them first may.
        answered, answer = _answer(_parents[transformer_engine], START_SECONDS)
        if answer != "ready\n":
            _end_parents()
            raise AssertionError(f"importing the engine {'failed' if answered else f'took more than {START_SECONDS} s'}")
    return _parents[transformer_engine]


def _answer(parent: subprocess.Popen[str], timeout_seconds: float) -> tuple[bool, str]:
    """Whether a parent has answered or ended in time, and its line, which is empty if it has ended."""
    assert parent.stdout is not None
    answered = bool(select.select([parent.stdout], [], [], timeout_seconds)[0])
    return answered, parent.stdout.readline() if answered else ""


def _end_parents() -> None:
    """Kill them with all ranks, which may hang and ignore SIGTERM."""
    while _parents:
        _, parent = _parents.popitem()
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


# -- the process that has imported NeMo -----------------------------------------------------------------------------------


def _main(transformer_engine: str) -> None:
    """Answer each call, a line of JSON on stdin, with a line on stdout."""
    version, _, apex = transformer_engine.partition("+")
    if version:
        from nemo_patches.stand_ins import install_transformer_engine

        install_transformer_engine(version)
    if apex:
        from nemo_patches.stand_ins import install_apex

        install_apex()
    from nemo_patches.cpu_device import present_cpu_as_device
    from nemo_patches.quiet import quiet_imports

    with quiet_imports():
        present_cpu_as_device()
        importlib.import_module("nemo.collections.llm")  # whole, and only then what training needs besides
        importlib.import_module("recipes.training.engine")
    print("ready", flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        ranks = [_fork(call, rank) for rank in range(call["world_size"])]
        print(_wait(ranks), flush=True)


def _fork(call: dict[str, Any], rank: int) -> int:
    """Start one rank; returns its process id."""
    if process := os.fork():
        return process
    code = 1
    try:
        _run(call, rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(call: dict[str, Any], rank: int) -> None:
    directory = Path(call["directory"])
    log = os.open(directory / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(call["port"])}
    address |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(call["world_size"]), **address)
    if call["initialize"]:
        torch.distributed.init_process_group("gloo")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=call["arguments"]["tensor_parallel_size"])
        model_parallel_cuda_manual_seed(1234)
    module, _, name = call["function"].partition(":")
    result = getattr(importlib.import_module(module), name)(**call["arguments"])
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # a rank that ends early closes connections that others are still making
    (directory / f"rank_{rank}.json").write_text(json.dumps(result))


def _wait(ranks: list[int]) -> str:
    """Wait for all ranks; where one fails, the others would wait for it, so they are killed."""
    failed, running = 0, set(ranks)
    while running:
        process, status = os.wait()
        running.remove(process)
        if status and not failed:
            failed = process
            for other in running:  # and no more: the number of one that has ended may be another process's by now
                os.kill(other, signal.SIGKILL)
    return f"rank {ranks.index(failed)} failed" if failed else "done"


if __name__ == "__main__":
    _main(sys.argv[1])
