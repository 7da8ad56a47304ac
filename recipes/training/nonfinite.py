"""What happens when a loss or a gradient is not finite: the step changes nothing, and the run goes on within a budget or ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from megatron.core import parallel_state
from torch import Tensor, nn

from common.command import StoppedError
from recipes.numbers.batches import Batches
from recipes.runs.run_dir import CHECKPOINTS_NAME, newest_checkpoint
from recipes.training.metrics_file import MetricsFile
from recipes.training.origins import Documents, counted, documents_of, in_words


class NonFiniteError(StoppedError):
    """A loss or gradient is not finite, and no more steps may be passed over."""


class NonFiniteSteps(Callback):
    """Finds such steps before the optimizer has seen them, on all ranks together.

    Attributes:
        passes_over: whether the step under way is to change nothing.
    """

    def __init__(self, run_dir: Path, file: MetricsFile, *, budget: int, batches: Batches, micro_batch_size: int) -> None:
        self._run_dir, self._file, self._budget = run_dir, file, budget
        self._batches, self._micro_batch_size = batches, micro_batch_size
        self._step, self._passed_over = 0, 0
        self._data: Any = None
        self._finite_losses: list[Tensor] = []
        self.passes_over = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count what the run has passed over before it was interrupted, and keep its data, of which the sentences speak."""
        self._data = trainer.datamodule._train_ds  # type: ignore[attr-defined]
        self._passed_over = sum("passed_over" in record for record in self._file.records(last_step=trainer.global_step))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Forget the step before."""
        self._step, self.passes_over = trainer.global_step, False
        self._finite_losses.clear()

    def note_loss(self, output: Tensor) -> None:
        """Note which samples of a micro batch are finite; waits for nothing.

        Args:
            output: (samples, tokens) losses, or what the next pipeline stage gets: (tokens, samples, width).
        """
        totals = output.detach().sum(dim=1 if output.dim() == 2 else (0, 2))
        self._finite_losses.append(torch.isfinite(totals))

    def look_at(self, chunks: Iterable[nn.Module]) -> None:
        """Decide about the step, with its losses and its reduced gradients.

        Raises:
            NonFiniteError: naming the step, the samples and the newest checkpoint, when the budget is spent.
        """
        sums = [buffer.grad_data.sum() for chunk in chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]  # type: ignore[union-attr,misc]
        finite = torch.cat([*self._finite_losses, *(torch.isfinite(total).reshape(1) for total in sums)]).all()
        worst = (~finite).to(torch.int32)
        torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MAX)
        if not worst.item():
            return
        samples, what = self._samples()
        documents = documents_of(self._data, samples)
        if self._passed_over >= self._budget:
            raise NonFiniteError(self._sentence(samples, what, documents))
        self._passed_over += 1
        self.passes_over = True
        for chunk in chunks:
            chunk.zero_grad_buffer()  # type: ignore[operator]
        if torch.distributed.get_rank() == 0:
            self._file.append({"step": self._step + 1, "passed_over": what, "samples": [samples[0], samples[-1]], "documents": documents})

    def _samples(self) -> tuple[Sequence[int], str]:
        """The samples whose losses are not finite, counted in the order of the data; all of the step if it is the gradient alone."""
        first = self._batches.samples(self._step)
        size, replicas = self._micro_batch_size, parallel_state.get_data_parallel_world_size()
        mine = [
            first + (number * replicas + parallel_state.get_data_parallel_rank()) * size + place
            for number, finite in enumerate(self._finite_losses)
            for place, is_finite in enumerate(finite.tolist())
            if not is_finite
        ]
        everywhere: list[list[int]] = [[] for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather_object(everywhere, mine)
        found = sorted({sample for one in everywhere for sample in one})
        if not found:
            return range(first, first + self._batches.size(self._step)), "gradient"
        return found, "loss"

    def _sentence(self, samples: Sequence[int], what: str, documents: Documents) -> str:
        newest = newest_checkpoint(self._run_dir)
        return (
            f"step {self._step + 1} has a {what} that is not finite, in {counted('sample', samples)} of the order of the data"
            f" ({in_words(documents)});"
            f" {self._passed_over} such steps were passed over and run.skip_nonfinite_steps allows {self._budget}."
            f" The last good checkpoint is {newest[1] if newest else f'none in {self._run_dir / CHECKPOINTS_NAME}'}; look at the"
            " documents with `python -m data_prep.inspect`, lower schedule.learning_rate, or allow to pass over more steps"
        )
