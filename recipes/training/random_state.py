"""Random state that resumes: NeMo saves none."""

from __future__ import annotations

from typing import Any

import torch
import xxhash
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed


class StepSeed(Callback):
    """Makes the random state a function of seed and step, so that a resumed run draws what an uninterrupted one would.

    NeMo saves no random state.  Megatron adds small numbers to the seed of tensor-parallel ranks (for dropout of sharded activations),
    so the seeds of steps, pipeline stages and pieces of samples lie far apart: otherwise a rank would drop out what another one does in another step.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Seed the step that begins."""
        stage, piece = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_context_parallel_rank()
        what = f"{self._seed} {trainer.global_step} {stage}" + (f" {piece}" if piece else "")
        seed = xxhash.xxh3_64_intdigest(what.encode()) % 2**31
        torch.default_generator.manual_seed(seed)  # torch.manual_seed writes down the call stack for every kind of absent device
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
