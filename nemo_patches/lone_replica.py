"""Gradients and parameters of which there is one copy: Megatron-core reduces and gathers them onto themselves all the same.

gloo takes 8 times as long for that as Adam for its step.  The optimizer stays the distributed one, so that a checkpoint can resume with any layout.
"""

from __future__ import annotations

from functools import partial
from typing import Any


def skip_collectives(module: Any) -> None:
    """Have Megatron's wrapper of a model with one copy of its weights scale the gradients, and send nothing.

    Args:
        module: DistributedDataParallel whose communication does not overlap with computing; experts may have a copy on each tensor-parallel rank.
    """
    experts = module.expert_parallel_bucket_groups if module.expt_dp_group.size() == 1 else []
    for group in (*module.bucket_groups, *experts):
        config = group.ddp_config
        assert not (
            config.overlap_grad_reduce or config.overlap_param_gather or config.check_for_nan_in_grad or config.check_for_large_grads
        )
        group.start_grad_sync = partial(_scale, group)
        group.start_param_sync = partial(_keep, group)


def _scale(group: Any) -> None:
    for bucket in group.buckets:
        if bucket.gradient_scaling_factor != 1.0:
            bucket.grad_data *= bucket.gradient_scaling_factor


def _keep(group: Any, force_sync: bool = False) -> None:
    group.param_gather_dispatched = True
