"""Documents are taken and held out from tables read one by one as with all of them in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.mixing.plan import ranks
from data_prep.mixing.selection import Taker, Taking, cuts, held_out
from tests.data_prep.plain_mixture import held_out_groups, take

# Few names, so that ids and groups come again; few stretches of ranks hold several of them.
DOCUMENTS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 30)), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(documents=DOCUMENTS, parts=st.integers(1, 4), wanted=st.floats(-5, 900), close=st.booleans())
def test_taken_are_the_same(documents: list[tuple[int, int, int]], parts: int, wanted: float, close: bool) -> None:
    kinds, names, weights = (np.array(column) for column in zip(*documents))
    order = names.astype(np.uint64) + np.uint64(7 << 60) if close else ranks(names.astype(np.uint64), 3)  # all in one stretch, or spread
    pieces = np.array_split(np.arange(len(names)), parts)
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
