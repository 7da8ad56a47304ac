"""Loss on held-out text of each language, in the order of the text and without padding."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from data_prep.megatron.index import TokenFile
from nemo_patches.context_parallel import on_this_rank
from nemo_patches.documents import documents_of
from recipes.training.documents import positions_in_documents
from recipes.training.metrics import Metrics, gather_parameters
from recipes.watchdog import Watchdog


class Validation(Callback):
    """Measures after every so many steps, and after the last one, what the model makes of each held-out set.

    A set is cut into samples of the run's length from its beginning, as many as were asked for or as it has; the same
    ones each time and at every layout.

    Args:
        end_of_text: the token behind which another document begins that does not see those before; None where samples are seen whole.
    """

    def __init__(
        self,
        sets: Mapping[str, Path],
        metrics: Metrics,
        watchdog: Watchdog,
        *,
        every_steps: int,
        max_steps: int,
        max_samples: int,
        sequence_length: int,
        micro_batch_size: int,
        end_of_text: int | None = None,
    ) -> None:
        self._sets = {language: TokenFile(prefix) for language, prefix in sets.items()}
        self._metrics, self._watchdog, self._every, self._max_steps = metrics, watchdog, every_steps, max_steps
        self._max_samples, self._length, self._micro_batch_size = max_samples, sequence_length, micro_batch_size
        self._end_of_text = end_of_text

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Measure where it is due."""
        if trainer.global_step % self._every and trainer.global_step != self._max_steps:
            return
        with self._watchdog.other_work("a validation"):
            self._measure(trainer)

    def _measure(self, trainer: Trainer) -> None:
        start = time.monotonic()
        gather_parameters(trainer)  # not all replicas may have samples, and the forward pass of each would gather
        chunks = list(trainer.strategy.megatron_parallel)  # type: ignore[attr-defined]
        for chunk in chunks:
            chunk.eval()
        with torch.no_grad():
            losses = {language: self._loss(chunks, tokens) for language, tokens in self._sets.items()}
        for chunk in chunks:
            chunk.train()
        if trainer.is_global_zero:
            self._metrics.write_validation(trainer, losses, seconds=time.monotonic() - start)

    def _loss(self, chunks: list[Any], tokens: TokenFile) -> float:
        """Mean loss per token in nats; every rank takes part, and gets it."""
        samples = range(min(self._max_samples, (tokens.num_tokens - 1) // self._length))
        mine = samples[parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()]
        whole = len(mine) // self._micro_batch_size * self._micro_batch_size
        total = torch.zeros(2, dtype=torch.float64, device="cuda")  # sum and number of losses
        for numbers, size in ((mine[:whole], self._micro_batch_size), (mine[whole:], 1)):
            if numbers:
                total += self._sums(chunks, tokens, numbers, size)
        torch.distributed.all_reduce(total)
        return float(total[0] / total[1])

    def _sums(self, chunks: list[Any], tokens: TokenFile, numbers: range, micro_batch_size: int) -> Tensor:
        """Sum and number of the losses of samples; 0 on ranks that have none, or the same as another."""

        def forward(batches: Iterator[Tensor], chunk: Any) -> tuple[Tensor, Any]:
            on_host = next(batches)
            batch = on_host.to("cuda", non_blocking=True)
            tokens, labels = on_this_rank(batch[:, :-1]).contiguous(), on_this_rank(batch[:, 1:]).contiguous()
            if self._end_of_text is None:
                documents, counts = None, torch.ones((), device="cuda")
                positions = on_this_rank(torch.arange(self._length, device="cuda").expand(micro_batch_size, -1))
            else:
                documents, counts = documents_of(positions_in_documents(on_host[:, :-1], self._end_of_text)), tokens != self._end_of_text
                positions = documents.positions
            losses = chunk(tokens, positions, None, labels=labels, packed_seq_params=documents)
            number = counts.expand_as(labels).sum(dtype=torch.float64)
            return losses, lambda output: (output.float().mean(), torch.stack([(output.double() * counts).sum(), number]))

        sums = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=_batches(tokens, numbers, micro_batch_size, self._length),
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=len(numbers) // micro_batch_size,
            seq_length=self._length,
            micro_batch_size=micro_batch_size,
            forward_only=True,
        )
        if not sums or parallel_state.get_tensor_model_parallel_rank():
            return torch.zeros(2, dtype=torch.float64, device="cuda")
        return torch.stack(sums).sum(dim=0)


def _batches(tokens: TokenFile, numbers: range, size: int, length: int) -> Iterator[Tensor]:
    """(size, length + 1) token ids each."""
    for first in range(0, len(numbers), size):
        rows = [tokens.slice(number * length, (number + 1) * length + 1) for number in numbers[first : first + size]]
        yield torch.from_numpy(np.stack(rows).astype(np.int64))
