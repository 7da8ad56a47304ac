"""From which documents of which data sets the samples of a run are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from megatron.core.datasets.blended_dataset import BlendedDataset

from recipes.training.answers import Answers
from recipes.training.documents import PaddedDocuments
from recipes.training.masking import MaskedSamples
from recipes.training.passes import OrderedSamples

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
