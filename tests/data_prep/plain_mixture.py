"""Which documents a mixture takes and holds out, with all of them in memory: the reference for `data_prep.mixing.selection`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_prep.mixing.plan import ranks


def take(tokens: NDArray[np.int64], order: NDArray[np.uint64], wanted: float) -> NDArray[np.bool_]:
    """Which documents to take: in order of their rank, as many as come closest to so many tokens."""
    chosen = np.zeros(len(tokens), dtype=bool)
    if not len(tokens) or wanted <= 0:
        return chosen
    by_rank = np.argsort(order, kind="stable")
    sums = np.cumsum(tokens[by_rank])
    number = int(np.searchsorted(sums, wanted))
    if number < len(sums):
        before = int(sums[number - 1]) if number else 0
        number += bool(sums[number] - wanted <= wanted - before)
    chosen[by_rank[:number]] = True
    return chosen


def held_out_groups(
    groups: NDArray[np.uint64], languages: NDArray[np.int64], tokens: NDArray[np.int64], share: float, seed: int
) -> NDArray[np.uint64]:
    """Groups of documents whose tokens are about a share of each language's, sorted.

    Whole groups in order of their rank, so that no document of a group is on both sides, whatever its language; at least one in each language
    that has two, and never all.

    Args:
        groups, languages, tokens: of each document.
    """
    held_out: set[int] = set()
    for language in np.unique(languages).tolist():
        here = languages == language
        names, places = np.unique(groups[here], return_inverse=True)
        if share <= 0 or len(names) < 2:
            continue
        sizes = np.bincount(places, weights=tokens[here]).astype(np.int64)
        chosen = take(sizes, ranks(names, seed), share * int(sizes.sum()))
        if not chosen.any():
            chosen[np.argmin(ranks(names, seed))] = True
        if chosen.all():
            chosen[np.argmax(ranks(names, seed))] = False
        held_out.update(names[chosen].tolist())
    return np.array(sorted(held_out), dtype=np.uint64)
