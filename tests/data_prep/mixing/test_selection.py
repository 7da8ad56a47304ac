"""Documents are taken and held out from tables read one by one as with all of them in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep.mixing import selection
from data_prep.mixing.plan import ranks, ranks_by_weight
from data_prep.mixing.selection import Taker, Taking, cuts, held_out
from tests.data_prep.plain_mixture import held_out_groups, take

# Few names, so that ids and groups come again; few stretches of ranks hold several of them.
DOCUMENTS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 30)), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(
    documents=DOCUMENTS,
    parts=st.integers(1, 4),
    wanted=st.floats(-5, 900),
    where=st.sampled_from(["spread", "close", "by weight"]),
    most=st.sampled_from([1, 4, 1 << 20]),
)
def test_taken_are_the_same(documents: list[tuple[int, int, int]], parts: int, wanted: float, where: str, most: int) -> None:
    kinds, names, weights = (np.array(column) for column in zip(*documents))
    order = {
        "spread": ranks(names.astype(np.uint64), 3),
        "close": names.astype(np.uint64) + np.uint64(7 << 60),  # all in one stretch, and in one of that
        "by weight": ranks_by_weight(ranks(names.astype(np.uint64), 3), 0.25 + names % 3),
    }[where]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_MOST_SORTED", most)
        _compare_taken(kinds, order, weights, parts, wanted)


def _compare_taken(kinds: NDArray[np.int64], order: NDArray[np.uint64], weights: NDArray[np.int64], parts: int, wanted: float) -> None:
    pieces = np.array_split(np.arange(len(kinds)), parts)
    takings = {kind: Taking() for kind in (0, 1)}
    for kind, taking in takings.items():
        taking.add(order[kinds == kind], weights[kinds == kind])
    found = cuts(takings, {0: wanted}, lambda: ((kinds[piece], (order[piece], weights[piece])) for piece in pieces))
    for kind in (0, 1):
        taker, mine = Taker(found[kind]), kinds == kind
        taken = np.concatenate([taker.take(order[piece][mine[piece]]) for piece in pieces])
        expected = take(weights[mine], order[mine], wanted) if kind == 0 else np.ones(mine.sum(), bool)
        assert taken.tolist() == expected.tolist()


@settings(max_examples=200, deadline=None)
@given(documents=DOCUMENTS, parts=st.integers(1, 4), share=st.sampled_from([0.0, 1e-9, 0.05, 0.3, 0.49]))
def test_held_out_are_the_same(documents: list[tuple[int, int, int]], parts: int, share: float) -> None:
    languages, names, weights = (np.array(column) for column in zip(*documents))
    groups, tokens = names.astype(np.uint64), weights + 1
    order = ranks(groups, 5)
    pieces = np.array_split(np.arange(len(names)), parts)
    found = held_out(lambda: ((languages[piece], order[piece], tokens[piece]) for piece in pieces), share)
    assert np.isin(order, found).tolist() == np.isin(groups, held_out_groups(groups, languages, tokens, share, 5)).tolist()


@pytest.mark.parametrize("number", [1, 1000])
def test_ranks_part_all_names(number: int) -> None:
    assert len(np.unique(ranks(np.arange(number, dtype=np.uint64), 1))) == number


def test_documents_by_weight_are_not_all_in_memory() -> None:
    """Ranks by weight lie close together: of 4 million documents whose weights differ by little, a stretch of the first reading has most."""
    num_pieces, piece_size, seen = 40, 100_000, []

    def read() -> Iterator[tuple[NDArray[np.int64], tuple[NDArray[np.uint64], NDArray[np.int64]]]]:
        for number in range(num_pieces):
            names = np.arange(number * piece_size, (number + 1) * piece_size, dtype=np.uint64)
            order = ranks_by_weight(ranks(names, 0), 1 + (names % 7).astype(np.float64) / 1000)
            yield np.zeros(piece_size, np.int64), (order, np.ones(piece_size, np.int64))
            seen.append(number)

    taking = Taking()
    for _, rows in read():
        taking.add(*rows)
    assert taking.documents.max() > 1 << 20, "the test is of such a stretch"
    tracemalloc.start()
    found = cuts({0: taking}, {0: 3e6}, read)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * (num_pieces * piece_size) / 2, "half of the ranks and weights"
    assert len(seen) == 3 * num_pieces, "counted, counted finer, sorted"
    taker = Taker(found[0])
    assert sum(int(taker.take(order).sum()) for _, (order, _) in read()) == 3_000_000
