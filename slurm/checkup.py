"""Each task of `slurm.doctor`'s job: report the facts of its node, and all-reduce a tensor over all tasks.

Called by the job script, not by users.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

from common import command
from common.options import add_option
from common.plain_files import write_json
from slurm.checks.node_facts import REDUCE_NAME, TOKEN_NAME, collect

_REPETITIONS = 5
_GPU_MIB, _CPU_MIB = 512, 16
_TIMEOUT = timedelta(minutes=5)


def main(argv: Sequence[str] | None = None) -> int:
    """Write this node's facts; rank 0 also writes the bandwidth."""
    parser = command.parser(__doc__, example="python -m slurm.checkup --output doctor --path /scratch")
    add_option(parser, "--output", "directory that slurm.doctor created", required=True, type=Path)
    add_option(parser, "--path", "file systems whose free space is checked", [], nargs="*", type=Path)
    arguments = parser.parse_args(argv)
    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    facts = collect([*arguments.path, Path("/tmp"), Path("/dev/shm")], token=arguments.output / TOKEN_NAME)
    write = arguments.output / f"node-{facts.node}.json"
    if local_rank == 0:
        write_json(write, asdict(facts))  # first of all without torch, so that a node whose torch is broken is heard too

    import torch
    from torch import distributed

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(local_rank)
    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=_TIMEOUT)
    distributed.barrier()
    facts = replace(
        facts, clock=time.time(), torch_cuda=torch.version.cuda, torch_rocm=torch.version.hip, torch_gpus=torch.cuda.device_count()
    )
    if local_rank == 0:
        write_json(write, asdict(facts))
    result = _reduce(rank, world_size, on_gpu=on_gpu)
    if rank == 0:
        write_json(arguments.output / REDUCE_NAME, result)
    distributed.destroy_process_group()
    return command.DONE


def _reduce(rank: int, world_size: int, *, on_gpu: bool) -> dict[str, object]:
    """Time the all-reduce of a large tensor, and whether its sum is right.

    The bandwidth is that of the bus, as nccl-tests count it: bytes times 2 (n - 1) / n over seconds.
    """
    import torch
    from torch import distributed

    mib = _GPU_MIB if on_gpu else _CPU_MIB
    tensor = torch.empty(mib * 2**18, device="cuda" if on_gpu else "cpu")
    seconds = []
    for _ in range(_REPETITIONS):
        tensor.fill_(rank)
        distributed.barrier()
        start = time.monotonic()
        distributed.all_reduce(tensor)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - start)
    expected = world_size * (world_size - 1) / 2
    num_bytes = tensor.numel() * tensor.element_size()
    return {
        "backend": "nccl" if on_gpu else "gloo",
        "mib": mib,
        "tasks": world_size,
        "is_right": bool((tensor == expected).all().item()),
        "bytes_per_second": num_bytes * 2 * (world_size - 1) / world_size / min(seconds),
    }


if __name__ == "__main__":
    command.run(main)
