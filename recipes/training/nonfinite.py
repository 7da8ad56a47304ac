"""What happens when a loss or a gradient is not finite: the step changes nothing, and the run continues within a budget or ends.

The message names the documents that the samples of the step are made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from megatron.core import parallel_state
from megatron.core.datasets.blended_dataset import BlendedDataset
from torch import Tensor, nn

from common.command import StoppedError
from recipes.numbers.batches import Batches
from recipes.runs.run_dir import CHECKPOINTS_NAME, newest_checkpoint
from recipes.training.loggers import MetricsFile
from recipes.training.masking import MaskedSamples
from recipes.training.passes import Answers, OrderedSamples, PaddedDocuments


class NonFiniteError(StoppedError):
    """A loss or gradient is not finite, and no more steps may be skipped."""


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
        """Count the steps that the run skipped before it was interrupted, and keep its data, which the messages name."""
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

    def check_step(self, chunks: Iterable[nn.Module]) -> None:
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
            f"step {self._step + 1} has a non-finite {what}, in {counted('sample', samples)} of the order of the data"
            f" ({in_words(documents)});"
            f" {self._passed_over} such steps were skipped and run.skip_nonfinite_steps allows {self._budget}."
            f" The last good checkpoint is {newest[1] if newest else f'none in {self._run_dir / CHECKPOINTS_NAME}'}; look at the"
            " documents with `python -m data_prep.inspect`, lower schedule.learning_rate, or allow more skipped steps"
        )


_MOST_RANGES = 8  # that a sentence names

Documents = Mapping[str, list[int]]
"""Directory of a data set -> numbers of some of its documents, counted from 0 as `data_prep.inspect --document` does."""


def documents_of(data: Any, samples: Iterable[int]) -> Documents:
    """The documents that samples of a run have text of.

    Args:
        data: the training data that the run's data module has built.
        samples: counted in the order of the data.
    """
    found: dict[str, set[int]] = {}
    for sample in samples:
        prefix, documents = _origin(data, sample)
        found.setdefault(str(Path(prefix).parent), set()).update(documents)
    return {data_set: sorted(documents) for data_set, documents in found.items()}


def _origin(data: Any, sample: int) -> tuple[str, list[int]]:
    """Path of a data set without suffix, and the documents in it."""
    if isinstance(data, MaskedSamples):
        return _origin(data.samples, sample)
    if isinstance(data, OrderedSamples):
        return _origin(*data.place(sample))
    if isinstance(data, BlendedDataset):
        return _origin(data.datasets[data.dataset_index[sample]], int(data.dataset_sample_index[sample]))
    if isinstance(data, Answers):
        return data.prefix, list(data.documents(sample))
    if isinstance(data, PaddedDocuments):
        return data.prefix, [data.place(sample)[0]]
    place = data.shuffle_index[sample]  # Megatron's GPTDataset; see its _query_document_sample_shuffle_indices
    first, last = (int(data.sample_index[end][0]) for end in (place, place + 1))
    return data.dataset.path_prefix, data.document_index[first : last + 1].tolist()


def in_words(documents: Documents) -> str:
    """For example: documents 12 to 14 of data/sl, document 3 of data/en."""
    return ", ".join(f"{counted('document', numbers)} of {data_set}" for data_set, numbers in documents.items())


def counted(what: str, numbers: Sequence[int]) -> str:
    """For example: samples 3, 5 to 8."""
    starts = [number for before, number in pairwise([-2, *numbers]) if number != before + 1]
    ends = [number for number, after in pairwise([*numbers, numbers[-1] + 2]) if after != number + 1]
    ranges = [str(start) if start == end else f"{start} to {end}" for start, end in zip(starts, ends, strict=True)]
    more = sum(number > ends[_MOST_RANGES - 1] for number in numbers) if len(ranges) > _MOST_RANGES else 0
    return f"{what}{'s' * (len(numbers) > 1)} {', '.join(ranges[:_MOST_RANGES])}" + (f" and {more} more" if more else "")
