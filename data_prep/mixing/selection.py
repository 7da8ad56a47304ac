"""Selection of training and held-out documents, over tables read in sequence: memory does not grow with the number of documents.

Documents are taken in the order of their ranks until a budget is met.  How far that goes is found in two readings: one adds up the tokens of each of
4,096 stretches of ranks, which tells the stretch in which the budget is met; the other sorts the documents of that stretch alone.  Ranks by weight
are not spread evenly, so a stretch with too many documents is first divided into 4,096 again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_BITS = 12
_STRETCHES = 1 << _BITS
_MOST_SORTED = 1 << 20  # documents in memory, of each kind

Rows = tuple[NDArray[np.uint64], NDArray[np.int64]]  # ranks and weights of some documents, in the order of the text


@dataclass(frozen=True)
class Cut:
    """How far in the order of ranks documents are taken: all below a rank, and the first of those that have it.

    Attributes:
        rank: np.uint64.
        count: of those with this rank, in the order of the text.
    """

    rank: int
    count: int

    @classmethod
    def everything(cls) -> Cut:
        """All documents."""
        return cls((1 << 64) - 1, 1 << 62)

    @classmethod
    def nothing(cls) -> Cut:
        """No document."""
        return cls(0, 0)


@dataclass
class Taking:
    """Documents of one kind, of which as many are wanted as come closest to a weight.

    Attributes:
        weights, documents: (stretches,) of all of them so far.
        lowest, highest: ranks so far.
        first, bits: the stretches divide the ranks from `first` on that have these first bits.
        before: weight of documents with lower ranks.
    """

    weights: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_STRETCHES, np.int64))
    documents: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_STRETCHES, np.int64))
    lowest: int | None = None
    highest: int | None = None
    first: int = 0
    bits: int = 0
    before: int = 0

    def add(self, ranks: NDArray[np.uint64], weights: NDArray[np.int64]) -> None:
        """Count some documents; both arrays are (num_documents,), weights in tokens or in sentences."""
        here = self._has(ranks)
        ranks, weights = ranks[here], weights[here]
        if len(ranks):
            stretches = self._stretches(ranks)
            np.add.at(self.weights, stretches, weights)
            np.add.at(self.documents, stretches, 1)
            low, high = int(ranks.min()), int(ranks.max())
            self.lowest = low if self.lowest is None else min(self.lowest, low)
            self.highest = high if self.highest is None else max(self.highest, high)

    @property
    def total(self) -> int:
        """Weight of all."""
        return int(self.weights.sum())

    def stretch(self, wanted: float) -> int | None:
        """In which so much is reached, None where all of it is less."""
        number = int(np.searchsorted(self.before + np.cumsum(self.weights), wanted))
        return number if number < _STRETCHES else None

    def within(self, stretch: int) -> Taking:
        """To count the documents of a stretch anew, and finer."""
        return Taking(
            first=self.first | (stretch << self._shift), bits=self.bits + _BITS, before=self.before + int(self.weights[:stretch].sum())
        )

    def is_too_full(self, stretch: int) -> bool:
        """Whether it has more documents than are sorted in memory, and can be divided."""
        return bool(self.documents[stretch] > _MOST_SORTED) and self._shift > 0

    def of_stretch(self, ranks: NDArray[np.uint64], stretch: int) -> NDArray[np.bool_]:
        """(len(ranks),) whether each rank lies in it."""
        return self._has(ranks) & (self._stretches(ranks) == stretch)

    @property
    def _shift(self) -> int:
        return max(0, 64 - _BITS - self.bits)

    def _has(self, ranks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        if not self.bits:
            return np.ones(len(ranks), bool)
        shift = np.uint64(64 - self.bits)
        return (ranks >> shift) == (np.uint64(self.first) >> shift)

    def _stretches(self, ranks: NDArray[np.uint64]) -> NDArray[np.int64]:
        return ((ranks >> np.uint64(self._shift)) & np.uint64(_STRETCHES - 1)).astype(np.int64)

    def cut(self, wanted: float, stretch: int, rows: Rows) -> Cut:
        """How far to take, from the documents of that stretch: `rows` are two arrays (num_documents,)."""
        ranks, weights = rows
        order = np.argsort(ranks, kind="stable")
        before = self.before + int(self.weights[:stretch].sum())
        sums = before + np.cumsum(weights[order])
        number = int(np.searchsorted(sums, wanted))
        reached = int(sums[number - 1]) if number else before
        number += bool(sums[number] - wanted <= wanted - reached)
        if not number:
            return Cut(self.first | (stretch << self._shift), 0)
        last = ranks[order[number - 1]]
        return Cut(int(last), int(np.count_nonzero(ranks[order[:number]] == last)))


def cuts(
    takings: dict[int, Taking],
    wanted: dict[int, float],
    read: Callable[[], Iterable[tuple[NDArray[np.int64], Rows]]],
    *,
    by_rank: bool = False,
) -> dict[int, Cut]:
    """How far to take the documents of each kind.

    Args:
        takings: of all documents, by kind.
        wanted: by kind; a kind without is taken whole.
        read: reads all documents once more, some at a time, as kind of each, ranks and weights, all (num_documents,); those of no interest
            have a kind that is not in `takings`.
        by_rank: documents of one rank are one thing and add up.
    """
    found = {kind: Cut.everything() for kind in takings}
    open_: dict[int, tuple[Taking, int]] = {}
    for kind, taking in takings.items():
        if kind in wanted:
            if wanted[kind] <= 0:
                found[kind] = Cut.nothing()
            elif (stretch := taking.stretch(wanted[kind])) is not None:
                open_[kind] = taking, stretch
    while too_full := {kind: taking.within(stretch) for kind, (taking, stretch) in open_.items() if taking.is_too_full(stretch)}:
        for kinds, (ranks, weights) in read():
            for kind, taking in too_full.items():
                taking.add(ranks[kinds == kind], weights[kinds == kind])
        for kind, taking in too_full.items():
            finer = taking.stretch(wanted[kind])
            assert finer is not None  # as it is reached in the stretch that was divided
            open_[kind] = taking, finer
    rows: dict[int, list[Rows]] = {kind: [] for kind in open_}
    for kinds, (ranks, weights) in read() if open_ else ():
        for kind, (taking, stretch) in open_.items():
            here = (kinds == kind) & taking.of_stretch(ranks, stretch)
            if here.any():
                rows[kind].append((ranks[here], weights[here]))
    for kind, (taking, stretch) in open_.items():
        joined: Rows = (np.concatenate([ranks for ranks, _ in rows[kind]]), np.concatenate([weights for _, weights in rows[kind]]))
        found[kind] = taking.cut(wanted[kind], stretch, _added_up(*joined) if by_rank else joined)
    return found


def _added_up(ranks: NDArray[np.uint64], weights: NDArray[np.int64]) -> Rows:
    names, places = np.unique(ranks, return_inverse=True)
    sums = np.zeros(len(names), np.int64)
    np.add.at(sums, places, weights)
    return names, sums


class Taker:
    """Says of documents in the order of the text whether they are taken."""

    def __init__(self, cut: Cut) -> None:
        self._rank, self._left = np.uint64(cut.rank), cut.count

    def take(self, ranks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each of the next documents is, (num_documents,) as their ranks."""
        taken = ranks < self._rank
        at_it = np.flatnonzero(ranks == self._rank)[: max(0, self._left)]
        taken[at_it] = True
        self._left -= len(at_it)
        return taken


def held_out(
    read: Callable[[], Iterator[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]]], share: float
) -> NDArray[np.uint64]:
    """Ranks of the groups whose documents are about a share of each language's tokens, sorted.

    Whole groups in order of their rank, so that no document of a group is on both sides, whatever its language; at least one in each language
    that has two, and never all.

    Args:
        read: reads all documents, some at a time, as language, rank of the group (which no other group has) and tokens of each, all
            (num_documents,).

    Returns:
        (num_groups,)
    """
    takings: dict[int, Taking] = {}
    if share <= 0:
        return np.zeros(0, np.uint64)
    for languages, ranks, tokens in read():
        for language in np.unique(languages).tolist():
            here = languages == language
            takings.setdefault(language, Taking()).add(ranks[here], tokens[here])
    takings = {language: taking for language, taking in takings.items() if taking.lowest != taking.highest}
    wanted = {language: share * taking.total for language, taking in takings.items()}
    found = cuts(takings, wanted, lambda: ((languages, (ranks, tokens)) for languages, ranks, tokens in read()), by_rank=True)
    highest: dict[int, int] = {}  # that are still held out
    for language, cut in found.items():
        lowest, last = takings[language].lowest, takings[language].highest
        assert lowest is not None and last is not None
        reached = max(cut.rank if cut.count else cut.rank - 1, lowest)
        highest[language] = min(reached, last - 1)
    names = [np.zeros(0, np.uint64)]
    for languages, ranks, _ in read():
        for language, rank in highest.items():
            names.append(np.unique(ranks[(languages == language) & (ranks <= np.uint64(rank))]))
    return np.unique(np.concatenate(names))
