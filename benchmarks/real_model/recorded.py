"""A step of training on a GPU as one CUDA graph: a small model's thousands of kernels take longer to launch one by one than to compute."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from conversion.comparing.comparison import TrainingOptions, require_finite, update

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ONE_BY_ONE = 3  # steps before a recording, in which libraries make what they keep


class RecordedStep:
    """Takes the steps of `comparison.take_step`: a few one by one, then a recorded one that is played again, which changes nothing but the time.

    It is recorded anew when other parameters are trained than before.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        how: TrainingOptions,
        *,
        warmup_steps: int,
        alone: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._model, self._optimizer, self._how, self._warmup_steps = model, optimizer, how, warmup_steps
        self._alone = alone or contextlib.nullcontext()
        size, length, device = how.batch_size, how.sequence_length, model.device
        self._batch = torch.zeros((size, length), dtype=torch.int64, device=device)
        # Given whole, as transformers would look at values to make it, for which a recording cannot stop.
        self._mask = torch.ones((length, length), dtype=torch.bool, device=device).tril().expand(size, 1, length, length)
        self._rate = torch.zeros((), device=device)
        for group in optimizer.param_groups:
            group.update(lr=self._rate, capturable=True)
        # The default stream cannot be recorded. torch hands out 32 streams in turns: more of them would be one, and a recording would hold what others do on it.
        beside = torch.cuda.current_stream(device)
        self._stream = beside if beside != torch.cuda.default_stream(device) else torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._trained: list[bool] = []
        self._one_by_one = 0

    def __call__(self, batch: Tensor, step: int) -> None:
        """One step on (batch_size, sequence_length) token ids.

        Args:
            step: its number, from 1.

        Raises:
            ValueError: if the loss is not finite.
        """
        if self._trained != (trained := [parameter.requires_grad for parameter in self._model.parameters()]):
            self._trained, self._graph, self._one_by_one = trained, None, 0
        self._batch.copy_(batch)
        self._rate.fill_(self._how.learning_rate * min(1.0, step / self._warmup_steps))
        if self._graph is None:
            with self._alone:
                loss = self._update_or_record()
        if self._graph is not None:
            self._graph.replay()
            loss = self._loss
        require_finite(loss, step)

    def _update_or_record(self) -> Tensor:
        """A step taken now, or, behind a few of these, one recorded, which computes nothing."""
        if self._one_by_one < _ONE_BY_ONE:
            self._one_by_one += 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                loss = self._update()
            torch.cuda.current_stream().wait_stream(self._stream)
            return loss
        self._graph = torch.cuda.CUDAGraph()
        # What other threads do meanwhile is none of the recording's business.
        with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
            self._loss = self._update()
        return self._loss

    def _update(self) -> Tensor:
        self._model.train()
        return update(self._model, self._optimizer, self._batch, self._how, attention_mask=self._mask, use_cache=False)
