"""The loops of similar.c in Python and numpy, to hold the C to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from data_prep.deduplication import similar_documents
from data_prep.deduplication.onion_types import finish
from data_prep.deduplication.similar_documents import SimilarSettings

_MULTIPLIER, _BASE, _MASK = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, (1 << 64) - 1
_CHUNK = 4096


def scan(texts: Sequence[str], fold: Mapping[int, str | None], n: int) -> tuple[list[NDArray[np.uint32]], list[int]]:
    """The different n-grams of each text in their order, (num_ngrams,) 32-bit hashes, and its number of words.

    Args:
        fold: what becomes of each code point, as `str.translate` takes it.
    """
    shingles, words = [], []
    for text in texts:
        folded = text.translate(fold).split()
        grams = ngram_hashes(finish(np.array([_joined(word) for word in folded], np.uint64)), [0], n)[n - 1 :]
        found, first = np.unique((grams >> np.uint64(32)).astype(np.uint32), return_index=True)
        shingles.append(found[np.argsort(first)])
        words.append(len(folded))
    return shingles, words


def _joined(word: str) -> int:
    value = 0
    for character in word:
        value = ((value ^ ord(character)) * _MULTIPLIER) & _MASK
        value ^= value >> 32
    return value


def minima(shingles: Sequence[NDArray[np.uint32]], a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """(num_documents, num_hashes): the least of each hash over the n-grams of a document.

    Args:
        shingles: (num_ngrams,) of each document.
        a, b: (num_hashes,), a hash is `a * ngram + b`.
    """
    result = np.full((len(shingles), len(a)), 0xFFFFFFFF, np.uint32)
    for document, found in enumerate(shingles):
        for start in range(0, len(found), _CHUNK):
            values = a[:, None] * found[None, start : start + _CHUNK] + b[:, None]
            np.minimum(result[document], values.min(axis=1), out=result[document])
    return result


def decide(
    sets: Sequence[NDArray[np.uint32]],
    groups: Sequence[Sequence[int]],
    *,
    least: float,
    checked: bool,
    containment: bool,
    most: int,
) -> tuple[list[int], list[float], int]:
    """Whom each document is most like, -1 where it stays, how much so, and how many pairs were compared; as `similar_decide` in similar.c.

    Args:
        sets: (num_ngrams,) the different n-grams of each document.
        groups: of each document those that it is a candidate in.
    """
    of, shares, compared = [], [], 0
    members: dict[int, list[int]] = {}
    for document, own in enumerate(groups):
        here = set(sets[document].tolist())
        met: set[int] = set()
        best, best_share = -1, 0.0
        for group in own:
            for other in members.get(group, ())[-most:]:
                if other in met:
                    continue
                met.add(other)
                share = 1.0
                if checked:
                    small, large = sorted((len(here), len(sets[other])))
                    if not containment and small < least * large:
                        continue
                    compared += 1
                    both = len(here.intersection(sets[other].tolist()))
                    share = both / (small if containment else small + large - both)
                    if share < least:
                        continue
                if best < 0 or share > best_share or (share == best_share and other < best):
                    best, best_share = other, share
        of.append(best)
        shares.append(best_share)
        if best < 0:
            for group in own:
                members.setdefault(group, []).append(document)
    return of, shares, compared


def ngram_hashes(tokens: NDArray[np.uint64], document_token: list[int], n: int) -> NDArray[np.uint64]:
    """(num_tokens,) the hash of the n-gram that ends at each token, 0 for the first n - 1 of a document.

    Args:
        tokens: (num_tokens,) hash of each.
        document_token: first token of each document.
    """
    window = np.zeros(len(tokens), dtype=np.uint64)
    for back in range(n if n <= len(tokens) else 0):
        window[n - 1 :] += tokens[n - 1 - back : len(tokens) - back] * np.uint64(pow(_BASE, back, 1 << 64))
    hashes = finish(window)
    for start in document_token:
        hashes[start : start + n - 1] = 0
    return hashes


def decide_candidates(
    shingles: NDArray[np.uint32],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    documents: NDArray[np.int64],
    groups: NDArray[np.int64],
    settings: SimilarSettings,
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """As `similar_documents._decide`."""
    sets = [np.asarray(shingles[start : start + size]) for start, size in zip(starts.tolist(), sizes.tolist())]
    lists: list[list[int]] = [[] for _ in sets]
    for document, group in sorted(zip(documents.tolist(), groups.tolist())):
        lists[document].append(group)
    containment = settings.measure == "containment"
    of, shares, compared = decide(
        sets, lists, least=settings.share, checked=not settings.unchecked, containment=containment, most=similar_documents._MOST_COMPARED
    )
    return np.array(of, np.int64), np.array(shares), compared
