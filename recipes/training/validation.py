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
from numpy.typing import NDArray
from torch import Tensor

from data_prep.megatron.index import TokenFile
from nemo_patches.context_parallel import on_this_rank
from nemo_patches.documents import documents_of
from nemo_patches.masked_positions import predict_only
from recipes.rules.masking import MaskVocabulary, parts_of_sample
from recipes.runs.watchdog import Watchdog
from recipes.training.metrics import Metrics, gather_parameters
from recipes.training.passes import positions_in_documents


class Validation(Callback):
    """Measures before the first step, after every so many, and after the last one, what the model makes of each held-out set.

    A set is cut into samples of the run's length from its beginning, as many as were asked for or as it has; the same
    ones each time and at every layout.

    Args:
        end_of_text: the token behind which another document begins that does not see those before; None where samples are seen whole.
        masks: where masked tokens are predicted: what hides them, and in how many passes each token is hidden once.
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
        masks: tuple[MaskVocabulary, int] | None = None,
    ) -> None:
        self._sets = {language: TokenFile(prefix) for language, prefix in sets.items()}
        self._metrics, self._watchdog, self._every, self._max_steps = metrics, watchdog, every_steps, max_steps
        self._max_samples, self._length, self._micro_batch_size = max_samples, sequence_length, micro_batch_size
        self._end_of_text, self._masks = end_of_text, masks

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure what a run starts from, to which all later values are compared."""
        if trainer.global_step == 0:
            with self._watchdog.other_work("a validation"):
                self._measure(trainer)

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
            found = {language: self._loss(chunks, tokens) for language, tokens in self._sets.items()}
        for chunk in chunks:
            chunk.train()
        if trainer.is_global_zero:
            losses = {language: loss for language, (loss, _) in found.items()}
            shares = {language: share for language, (_, share) in found.items()}
            seconds = time.monotonic() - start
            self._metrics.write_validation(trainer, losses, seconds=seconds, masked_shares=shares if self._masks else None)

    def _loss(self, chunks: list[Any], tokens: TokenFile) -> tuple[float, float]:
        """Mean loss per predicted token in nats, and the share of tokens that is predicted; every rank takes part, and gets it."""
        num_samples = min(self._max_samples, (tokens.num_tokens - (self._masks is None)) // self._length)
        samples = range(num_samples * (self._masks[1] if self._masks else 1))
        mine = samples[parallel_state.get_data_parallel_rank() :: parallel_state.get_data_parallel_world_size()]
        whole = len(mine) // self._micro_batch_size * self._micro_batch_size
        total = torch.zeros(2, dtype=torch.float64, device="cuda")  # sum and number of losses
        for numbers, size in ((mine[:whole], self._micro_batch_size), (mine[whole:], 1)):
            if numbers:
                total += self._sums(chunks, tokens, numbers, size)
        torch.distributed.all_reduce(total)
        return float(total[0] / total[1]), float(total[1]) / (num_samples * self._length)

    def _sums(self, chunks: list[Any], tokens: TokenFile, numbers: range, micro_batch_size: int) -> Tensor:
        """Sum and number of the losses of samples; 0 on ranks that have none, or the same as another."""

        def forward(batches: Iterator[Tensor], chunk: Any) -> tuple[Tensor, Any]:
            on_host = next(batches)
            batch = on_host.to("cuda", non_blocking=True)
            tokens, labels, counts = (on_this_rank(part).contiguous() for part in batch)
            if self._end_of_text is None:
                documents, positions = None, on_this_rank(torch.arange(self._length, device="cuda").expand(micro_batch_size, -1))
            else:
                documents = documents_of(positions_in_documents(on_host[0], self._end_of_text))
                positions = documents.positions
            if self._masks is not None:
                predict_only(chunk, on_host[2])
            losses = chunk(tokens, positions, None, labels=labels, packed_seq_params=documents)
            number = counts.sum(dtype=torch.float64)
            return losses, lambda output: (output.float().mean(), torch.stack([(output.double() * counts).sum(), number]))

        sums = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=self._batches(tokens, numbers, micro_batch_size),
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=len(numbers) // micro_batch_size,
            seq_length=self._length,
            micro_batch_size=micro_batch_size,
            forward_only=True,
        )
        if not sums or parallel_state.get_tensor_model_parallel_rank():
            return torch.zeros(2, dtype=torch.float64, device="cuda")
        return torch.stack(sums).sum(dim=0)

    def _batches(self, tokens: TokenFile, numbers: range, size: int) -> Iterator[Tensor]:
        """(3, size, length) each: what the model sees, what it has to predict, and whether that counts."""
        for first in range(0, len(numbers), size):
            rows = [self._sample(tokens, number) for number in numbers[first : first + size]]
            yield torch.from_numpy(np.stack(rows, axis=1))

    def _sample(self, tokens: TokenFile, number: int) -> NDArray[np.int64]:
        """(3, length); see `_batches`."""
        if self._masks is None:
            text = tokens.slice(number * self._length, (number + 1) * self._length + 1).astype(np.int64)
            counts = np.ones(self._length, dtype=bool) if self._end_of_text is None else text[:-1] != self._end_of_text
            return np.stack([text[:-1], text[1:], counts])
        vocabulary, num_parts = self._masks
        number, part = divmod(number, num_parts)
        text = tokens.slice(number * self._length, (number + 1) * self._length).astype(np.int64)
        hidden = parts_of_sample(text, vocabulary, num_parts=num_parts, number=number) == part
        return np.stack([np.where(hidden, vocabulary.mask_id, text), text, hidden])
