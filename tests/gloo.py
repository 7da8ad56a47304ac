"""Runs a function on several gloo processes and gives back what each rank returned."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.processes import Group


def run_on_gloo(function: str, *, world_size: int, directory: Path, timeout_seconds: float = 120, **arguments: Any) -> list[Any]:
    """Call `module:function(**arguments)` on every rank, inside Megatron's parallel state.

    Args:
        arguments: JSON values; `tensor_parallel_size` (default: all ranks) is used for the layout and passed on.

    Returns:
        The JSON value that each rank returned.
    """
    directory.mkdir(parents=True, exist_ok=True)
    call = json.dumps({"function": function, "arguments": {"tensor_parallel_size": world_size, **arguments}, "directory": str(directory)})
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}", "--module", "tests.gloo", call]
    finished = Group(launcher, log_dir=directory / "logs").wait(timeout_seconds=timeout_seconds)
    assert finished.code == 0, finished.stderr[-4000:]
    return [json.loads((directory / f"rank_{rank}.json").read_text()) for rank in range(world_size)]


def _main() -> None:
    call = json.loads(sys.argv[1])
    from nemo_patches.cpu_device import present_cpu_as_device
    from nemo_patches.quiet import quiet_imports

    with quiet_imports():
        present_cpu_as_device()
        import torch
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        module, _, name = call["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=call["arguments"]["tensor_parallel_size"])
    model_parallel_cuda_manual_seed(1234)
    result = function(**call["arguments"])
    (Path(call["directory"]) / f"rank_{os.environ['RANK']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    _main()
