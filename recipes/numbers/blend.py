"""In which order training sees its data: passes over data sets, each sample of a pass exactly as often as the recipe says.

A data set is cut into samples once; each time that it is seen, its samples come in a new order that the seed decides.  The data sets of
a pass are interleaved evenly, so that every stretch of it has them in the same proportions.  The order is a list of samples that does not
depend on how many ranks read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SEED_OF_PASSES = 7_919  # keeps the orders of data sets, passes and repetitions apart


@dataclass(frozen=True)
class Blend:
    """Samples of one pass from each data set, and how many passes there are.

    Attributes:
        sizes: samples of each data set, seen once.
        drawn: how many samples a pass takes from each; more than its size means that it is repeated within the pass.
        passes: how often that happens; the last may be cut short.
    """

    sizes: tuple[int, ...]
    drawn: tuple[int, ...]
    passes: float

    @property
    def samples_per_pass(self) -> int:
        """Of all data sets."""
        return sum(self.drawn)

    @property
    def num_samples(self) -> int:
        """Of the whole run."""
        return int(self.passes * self.samples_per_pass)


@dataclass(frozen=True)
class Order:
    """Which sample comes when.

    Attributes:
        data_sets: (num_samples,) uint16, number of the data set.
        samples: (num_samples,) uint32, number of the sample in it.
    """

    data_sets: NDArray[np.uint16]
    samples: NDArray[np.uint32]


def num_windows(num_tokens: int, sequence_length: int) -> int:
    """Samples of a data set seen once: windows of one token more than the sequence, each beginning with the last token of the one before."""
    return max(num_tokens - 1, 0) // sequence_length


def pack(lengths: NDArray[np.integer], room: int) -> NDArray[np.int64]:
    """Put documents into samples, as many as follow each other and fit.

    Args:
        lengths: (num_documents,), none of more than `room` tokens.
        room: tokens of a sample, with the one that is predicted last.

    Returns:
        (samples + 1,), the first document of each sample, and one past the last.
    """
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    bounds = [0]
    while bounds[-1] < len(lengths):
        fitting = int(np.searchsorted(ends, ends[bounds[-1]] + room, side="right")) - 1
        bounds.append(max(fitting, bounds[-1] + 1))  # one that does not fit is refused by others
    return np.array(bounds, dtype=np.int64)


def num_pieces(lengths: NDArray[np.integer], sequence_length: int) -> NDArray[np.int64]:
    """(documents,), samples of each document where each is a sample of its own, and a long one several."""
    return -(-lengths.astype(np.int64) // sequence_length)


def apportion(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to the weights that sum to `total` (largest remainder)."""
    exact = np.array(weights, dtype=np.float64) / np.sum(weights) * total
    whole = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(whole - exact, kind="stable")
    whole[by_remainder[: total - int(whole.sum())]] += 1
    return tuple(whole.tolist())


def sample_order(blend: Blend, *, seed: int) -> Order:
    """The order of a whole run."""
    parts = []
    for number in range(int(np.ceil(blend.passes))):
        parts.append(_one_pass(blend, number, seed=seed))
    data_sets = np.concatenate([part.data_sets for part in parts])[: blend.num_samples]
    samples = np.concatenate([part.samples for part in parts])[: blend.num_samples]
    return Order(data_sets, samples)


def _one_pass(blend: Blend, number: int, *, seed: int) -> Order:
    """The order of one pass, counted from 0."""
    data_sets = np.repeat(np.arange(len(blend.drawn), dtype=np.uint16), blend.drawn)
    samples = np.concatenate(
        [_draw(size, drawn, (seed, _SEED_OF_PASSES + number, which)) for which, (size, drawn) in enumerate(zip(blend.sizes, blend.drawn))]
    )
    # The j-th of n samples stands at (j + 1/2) / n of the pass.
    place = np.concatenate([(np.arange(drawn) + 0.5) / max(drawn, 1) for drawn in blend.drawn])
    order = np.argsort(place, kind="stable")
    return Order(data_sets[order], samples[order])


def _draw(size: int, drawn: int, seed: tuple[int, ...]) -> NDArray[np.uint32]:
    """`drawn` samples of a data set: all of them in an order of their own, again and again, the last time not all."""
    repetitions = -(-drawn // size) if drawn else 0
    rounds = [np.random.default_rng((*seed, repetition)).permutation(size) for repetition in range(repetitions)]
    return np.concatenate([np.zeros(0, np.int64), *rounds])[:drawn].astype(np.uint32)
