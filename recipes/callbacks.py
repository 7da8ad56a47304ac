"""What happens around the steps of a run: random state, progress, checkpoints."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from data_prep.artifacts import make_group_readable, sync_tree, write_manifest
from recipes.run_dir import checkpoint_name

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
        torch.manual_seed(seed)
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


class Metrics(Callback):
    """Writes one line of JSON per logged step to `metrics.jsonl` and a short line to stderr.

    It calls no collective: NeMo's own printer does, on rank 0 alone, and hangs a run of several processes.
    """

    def __init__(self, path: Path, *, every_steps: int, tokens_per_step: int, max_steps: int, bytes_per_token: float | None) -> None:
        self._path, self._every, self._tokens_per_step, self._max_steps = path, every_steps, tokens_per_step, max_steps
        self._bytes_per_token = bytes_per_token
        self._last_time, self._last_step, self._learning_rate = time.monotonic(), 0, 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget what an interrupted run logged after the checkpoint that this one resumes from."""
        self._last_time, self._last_step = time.monotonic(), trainer.global_step
        if trainer.is_global_zero and self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= trainer.global_step]
            partial = self._path.with_suffix(".partial")
            partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            partial.replace(self._path)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note the learning rate that the step will use; afterwards the optimizer holds that of the next."""
        self._learning_rate = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the step that ended."""
        step = trainer.global_step
        if not trainer.is_global_zero or (step % self._every and step != self._max_steps) or step == self._last_step:
            return
        logged = trainer.callback_metrics
        now = time.monotonic()
        steps_per_second = (step - self._last_step) / (now - self._last_time)
        self._last_time, self._last_step = now, step
        record = {
            "step": step,
            "loss": float(logged["reduced_train_loss"]),
            "learning_rate": self._learning_rate,
            "gradient_norm": float(logged["grad_norm"]) if "grad_norm" in logged else None,
            "tokens": step * self._tokens_per_step,
            "tokens_per_second": round(steps_per_second * self._tokens_per_step, 1),
        }
        self._write(record)
        left = (self._max_steps - step) / steps_per_second
        print(
            f"step {step}/{self._max_steps}  loss {record['loss']:.4f}  learning rate {record['learning_rate']:.2e}"
            f"  {record['tokens_per_second']:,.0f} tokens/s  {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the loss on held-out text, also in bits per byte, which compares runs with different vocabularies."""
        if not trainer.is_global_zero or "val_loss" not in trainer.callback_metrics:
            return
        loss = float(trainer.callback_metrics["val_loss"])
        record: dict[str, Any] = {"step": trainer.global_step, "validation_loss": loss}
        if self._bytes_per_token:
            record["validation_bits_per_byte"] = loss / math.log(2) / self._bytes_per_token
        self._write(record)
        text = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in record.items() if name != "step")
        print(f"step {trainer.global_step}/{self._max_steps}  {text}", file=sys.stderr, flush=True)

    def _write(self, record: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


class Checkpoints(Callback):
    """Saves NeMo checkpoints `step_0000100` ..., each complete in itself and renamed into place when it is.

    A directory with the final name has weights, context and manifest; whatever a crash leaves has a hidden name.
    """

    def __init__(
        self,
        directory: Path,
        *,
        every_steps: int,
        max_steps: int,
        source_context: Path,
        facts: Mapping[str, Any],
        inputs: Mapping[str, str],
        arguments: Mapping[str, Any],
        optimizer_in_last: bool,
    ) -> None:
        self._directory, self._every, self._max_steps = directory, every_steps, max_steps
        self._source_context, self._facts, self._inputs, self._arguments = source_context, facts, inputs, arguments
        self._optimizer_in_last = optimizer_in_last
        self._last_saved = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what interrupted saves left behind."""
        self._last_saved = trainer.global_step
        if trainer.is_global_zero:
            for partial in self._directory.glob(".step_*.partial"):
                shutil.rmtree(partial, ignore_errors=True)
        trainer.strategy.barrier("checkpoints cleaned")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save where a checkpoint is due."""
        step = trainer.global_step
        if step != self._last_saved and (step % self._every == 0 or step == self._max_steps):
            self._last_saved = step
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write one checkpoint; every rank takes part."""
        step = trainer.global_step
        final = self._directory / checkpoint_name(step)
        partial = self._directory / f".{final.name}.partial"
        weights_only = step == self._max_steps and not self._optimizer_in_last
        trainer.save_checkpoint(str(partial), weights_only=weights_only)
        trainer.strategy.barrier("checkpoint written")
        if trainer.is_global_zero:
            self._complete(partial, step)
            if final.exists():  # a resumed run may pass a step that was saved with other data
                shutil.rmtree(final)
            partial.replace(final)
        trainer.strategy.barrier("checkpoint renamed")

    def _complete(self, partial: Path, step: int) -> None:
        shutil.copytree(self._source_context, partial / "context", dirs_exist_ok=True)
        make_group_readable(partial)
        # Hashing a large checkpoint would keep the GPUs waiting, so sizes have to do.
        write_manifest(
            partial,
            stage="recipes.train",
            facts={**self._facts, "step": step},
            arguments=self._arguments,
            inputs=self._inputs,
            hash_files=False,
        )
        sync_tree(partial)


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return sys.maxsize  # a line that was cut off by a crash
