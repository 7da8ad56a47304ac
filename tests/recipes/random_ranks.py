"""What the ranks of test_random_state.py do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from conversion.measuring.engine_forward import set_layout
from recipes.training.callbacks import StepSeed


def draws(tensor_parallel_size: int, steps: list[int]) -> dict[str, Any]:
    """What a rank of two tensor-parallel ranks and two stages draws at the beginning of steps: what all ranks have whole, and a part."""
    torch.distributed.init_process_group("gloo")
    set_layout(tensor_parallel_size=tensor_parallel_size, pipeline_parallel_size=2)
    seed, whole, part = StepSeed(42), [], []
    for step in steps:
        seed.on_train_batch_start(SimpleNamespace(global_step=step), None, None, 0)  # type: ignore[arg-type]
        whole.append(torch.rand(4).tolist())
        with get_cuda_rng_tracker().fork():
            part.append(torch.rand(4).tolist())
    stage, rank = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()
    return {"stage": stage, "rank": rank, "whole": whole, "part": part}
