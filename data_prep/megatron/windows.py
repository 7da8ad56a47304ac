"""The samples that training reads from indexed datasets: Megatron's own shuffled order for a seed.

Megatron lays the documents of enough epochs one behind the other in a shuffled order, cuts that into windows of one token more than the
sequence length (the last token of a window is the first of the next), and shuffles the windows.  Of several datasets it draws by
weights.  The indices are built by Megatron itself, with the configuration that NeMo's pretraining data module gives it.
"""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.megatron.index import TokenFile


@dataclass(frozen=True)
class Piece:
    """Tokens `start` to `end` of a document of one of the datasets; all counted from 0."""

    dataset: int
    document: int
    start: int
    end: int


@contextmanager
def one_process_group() -> Iterator[None]:
    """A process group of this process alone, which Megatron's blend of datasets asks for its rank; none where there is one."""
    import torch

    if torch.distributed.is_initialized():
        yield
        return
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


class TrainingWindows:
    """The windows of a training run.

    Args:
        prefixes: paths of the datasets, without suffix.
        weights: how often each is drawn from, relative to the others; None with one dataset.
        num_samples: of the whole run, that is steps x global batch size: more samples may mean more epochs and another order.
        eos_token_id: the end of a document; the order does not depend on it.

    Raises:
        ValueError: if the data has too few tokens for one window.
    """

    def __init__(
        self,
        prefixes: Sequence[Path],
        weights: Sequence[float] | None,
        *,
        sequence_length: int,
        num_samples: int,
        seed: int,
        eos_token_id: int = 0,
    ) -> None:
        self._files = [TokenFile(prefix) for prefix in prefixes]
        for prefix, data in zip(prefixes, self._files):
            if data.num_tokens < sequence_length + 1:
                raise ValueError(f"{prefix} has {data.num_tokens} tokens; one window needs {sequence_length + 1}")
        with warnings.catch_warnings(action="ignore"):  # of GPU packages that are not needed here
            # By name, as the engine's patches come after this stage: with nvcc and no GPU, as on login nodes, Megatron-core's import would fail.
            importlib.import_module("nemo_patches.no_allocator").compile_no_allocator()
            from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
            from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
            from megatron.core.datasets.utils import get_blend_from_list

        words = list(map(str, prefixes))
        if weights is not None and len(words) > 1:
            words = [word for weight, path in zip(weights, words) for word in (str(weight), path)]
        with one_process_group(), tempfile.TemporaryDirectory() as cache:  # else Megatron writes its indices into the data's folder
            config = GPTDatasetConfig(
                random_seed=seed,
                sequence_length=sequence_length,
                tokenizer=SimpleNamespace(eod=eos_token_id, unique_identifiers={}, vocab_size=None),  # the size is asked for from 0.19 on
                path_to_cache=cache,
                reset_position_ids=False,
                reset_attention_mask=False,
                eod_mask_loss=False,
                create_attention_mask=False,
                blend_per_split=[get_blend_from_list(words), None, None],
            )
            builder = BlendedMegatronDatasetBuilder(GPTDataset, [num_samples, 0, 0], lambda: True, config)
            self._dataset: Any = builder.build()[0]
            self._parts = list(getattr(self._dataset, "datasets", [self._dataset]))

    def __len__(self) -> int:
        return len(self._dataset)

    def pieces(self, number: int) -> list[Piece]:
        """What a window is made of, in order; together one token more than the sequence length."""
        which, sample = 0, number
        if len(self._parts) > 1:
            which, sample = int(self._dataset.dataset_index[number]), int(self._dataset.dataset_sample_index[number])
        data, part = self._files[which], self._parts[which]
        sample = int(part.shuffle_index[sample])
        (first, start), (last, end) = part.sample_index[sample].tolist(), part.sample_index[sample + 1].tolist()
        places = []
        for place in range(first, last + 1):
            document = int(part.document_index[place])
            length = len(data[document])
            places.append(Piece(which, document, start if place == first else 0, end + 1 if place == last else length))
        return places

    def tokens(self, number: int) -> NDArray:
        """(sequence_length + 1,) token ids of a window, in its file's dtype: inputs are all but the last, labels all but the first."""
        return np.concatenate([self._files[piece.dataset][piece.document][piece.start : piece.end] for piece in self.pieces(number)])
