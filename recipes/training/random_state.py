"""Random state that resumes: NeMo saves none."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

_SEED_STRIDE = 1_000_003  # a prime above the offsets that Megatron adds for tensor-parallel ranks


class StepSeed(Callback):
    """Makes the random state a function of seed and step, so that a resumed run draws what an uninterrupted one would.

    NeMo saves no random state.  Tensor-parallel ranks differ where Megatron wants it (dropout of sharded activations).
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Seed the step that begins."""
        seed = (self._seed * _SEED_STRIDE + trainer.global_step) % 2**31
        torch.default_generator.manual_seed(seed)  # torch.manual_seed writes down the call stack for every kind of absent device
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
