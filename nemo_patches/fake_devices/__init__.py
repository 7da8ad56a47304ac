"""Simulated GPUs, presented to NeMo: tensors with shape, dtype, device and storage but no values, in a world of any size.

Every branch that `torch.cuda.is_available()` opens is taken, with the CPU build of torch, by one process that simulates one rank:

- `FakeGpu`, a FakeTensorMode, gives the tensors and tells an `Observer` what is allocated, what a rank sends, and where the host waits;
- `GpuCalls`, a torch function mode, rewrites what torch's C++ would ask a real device for, and answers as the kernels of a GPU would;
- torch's process group "fake" gives the other ranks, which say nothing;
- `PATCHES` replaces the functions of `torch.cuda`, and of libraries that read values.

Inside torch's C++ a tensor of ours says that it is on "meta", a device that every build has; in Python it says "cuda".  So neither a
GPU nor a compiler is needed, and the backward pass runs in the thread that asked for it.

Use, before anything of NeMo is imported:

    present_fake_gpus()
    with simulated_rank(World(rank=0, size=64, devices_per_node=4, gpu=FakeGpuKind("NVIDIA A100-SXM4-40GB", 40 << 30, (8, 0))), observer):
        ...  # build, train, save: all tensors are fake

Values mean nothing: `item()` of a floating-point tensor is 1, of any other 0 or False.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as distributed
from torch._subclasses.fake_tensor import FakeTensor

from nemo_patches.core import Patch, apply
from nemo_patches.cpu_device import being, returning
from nemo_patches.fake_devices import collectives, cuda
from nemo_patches.fake_devices.calls import GpuCalls
from nemo_patches.fake_devices.fusion import compile_by_fusion
from nemo_patches.fake_devices.tensors import FakeGpu
from nemo_patches.fake_devices.world import FakeGpuKind, Observer, Simulated, World, simulated

__all__ = ["PATCHES", "FakeGpuKind", "Observer", "World", "present_fake_gpus", "simulated_rank"]

_PORT = "29999"  # nothing listens there


def present_fake_gpus() -> None:
    """Apply the patches, for the life of the process; to be called before NeMo, Megatron-core or Lightning is imported."""
    apply(PATCHES)
    torch.cuda.default_generators = (cuda.GENERATOR,) * 64  # type: ignore[assignment]
    FakeTensor.is_cuda = property(lambda self: self.fake_device.type == "cuda")  # type: ignore[assignment,method-assign]


@contextlib.contextmanager
def simulated_rank(world: World, observer: Observer) -> Iterator[None]:
    """Be a rank of a fake world; every tensor that is made within is fake.

    The environment says what a launcher would say, and is put back at the end; process groups are forgotten.
    """
    node, local = divmod(world.rank, world.devices_per_node)
    environment = {
        "RANK": world.rank,
        "WORLD_SIZE": world.size,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": world.devices_per_node,
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": _PORT,
        "TORCHELASTIC_RUN_ID": "rehearsal",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update({name: str(value) for name, value in environment.items()})
    simulated.append(Simulated(world, observer))
    try:
        with GpuCalls(), FakeGpu(observer, world.device):
            yield
    finally:
        simulated.pop()
        collectives.forget_all()
        if distributed.is_initialized():
            from megatron.core import num_microbatches_calculator, parallel_state

            parallel_state.destroy_model_parallel()
            num_microbatches_calculator.unset_num_microbatches_calculator()
            distributed.destroy_process_group()
        for name, value in before.items():
            os.environ.pop(name, None)  # Lightning removes WORLD_SIZE where there is one process
            if value is not None:
                os.environ[name] = value


def _at_the_start(original: Callable[..., Any]) -> Any:
    """NeMo makes a mesh of the ranks and does not use it; which place is this rank's stands in values."""
    return staticmethod(lambda mesh, rank: (0,) * mesh.dim())


def _replacing(target: str, wrap: Callable[..., Any]) -> Patch:
    return Patch(
        target=target,
        wrap=wrap,
        package="torch",
        digests={},  # rehearsals in the tests show whether a version of torch fits
        reason="There is no GPU that could answer, and no other rank.",
        remove_when="torch has GPUs without values of its own.",
    )


PATCHES = (
    *(_replacing(f"torch.cuda:{name}", wrap) for name, wrap in cuda.REPLACED),
    _replacing("torch.cuda.random:get_rng_state", returning(cuda.STATE)),
    _replacing("torch.cuda.nvtx:range_push", returning(0)),
    _replacing("torch.cuda.nvtx:range_pop", returning(0)),
    _replacing("torch.distributed:init_process_group", collectives.fake_group),
    _replacing("torch.distributed:new_group", collectives.new_group_of_fakes),
    _replacing("torch.distributed:batch_isend_irecv", collectives.batch_of),
    _replacing("torch.distributed:all_gather_object", being(collectives.gathered)),
    _replacing("torch.distributed:gather_object", being(collectives.gather)),
    _replacing("torch.distributed:scatter_object_list", being(collectives.scatter)),
    _replacing("torch.distributed:broadcast_object_list", returning(None)),
    _replacing("torch.distributed.device_mesh:DeviceMesh._compute_coordinates_from_mesh", _at_the_start),
    _replacing("torch:compile", compile_by_fusion),
    _replacing("torch._subclasses.fake_tensor:init_gpu_context", returning(None)),
    _replacing("torch.nn:Module._apply", cuda.move_modules),
    _replacing("torch.utils.data._utils.pin_memory:pin_memory", cuda.no_pinning),
)
