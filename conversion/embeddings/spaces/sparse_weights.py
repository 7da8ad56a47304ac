"""Weights of neighbours by similarity, as sparse matrices: never more than a block of similarities exists at once.

A row of the result says from which anchors, and how much of each, one new row is combined.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy import sparse

from conversion.embeddings.spaces.nearest import nearest_anchors
from conversion.embeddings.spaces.token_vectors import Rows


def sparsemax_weights(new: Rows, anchors: Rows, *, temperature: float = 1.0) -> sparse.csr_matrix:
    """Sparsemax of the cosine similarities of new vectors to anchors (Martins and Astudillo 2016, algorithm 1).

    The Euclidean projection of the similarities on the simplex: most weights are exactly zero.  Only the largest similarities can
    be in the support, so the projection is computed of as many as it takes, in float64.

    Args:
        new: (num_new, size), without rows of zeros.
        anchors: (num_anchors, size), without rows of zeros.
        temperature: similarities are divided by it; below 1 fewer anchors take part.

    Returns:
        (num_new, num_anchors) float64; each row sums to 1, columns in ascending order.
    """

    def project(similarities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights, threshold = sparsemax_of_sorted(similarities / temperature)
        return weights, threshold * temperature

    return _collect(len(anchors), nearest_anchors(new, anchors, project))


def softmax_weights(new: Rows, anchors: Rows, *, num_neighbors: int, temperature: float) -> sparse.csr_matrix:
    """Softmax over the cosine similarities to the nearest anchors (WECHSEL: Minixhofer et al. 2022, equation 3).

    Args:
        new: (num_new, size), without rows of zeros.
        anchors: (num_anchors, size), without rows of zeros.

    Returns:
        (num_new, num_anchors) float64; each row sums to 1, columns in ascending order.
    """
    width = min(num_neighbors, len(anchors))

    def soften(similarities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = np.exp((similarities - similarities[:, :1]) / temperature)
        weights[:, width:] = 0
        return weights / weights.sum(axis=1, keepdims=True), similarities[:, width - 1]

    return _collect(len(anchors), nearest_anchors(new, anchors, soften, num_neighbors=width))


def sparsemax_of_sorted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sparsemax of rows that are sorted from the largest value down, in float64: weights, and the value below which they are zero.

    The threshold of the largest values alone is at most that of all, so values below it are outside the support whatever they are.

    Args:
        values: (num_rows, width)

    Returns:
        (num_rows, width) weights and (num_rows,) thresholds
    """
    values = values.astype(np.float64)
    counts = np.arange(1, values.shape[1] + 1)
    excess = np.cumsum(values, axis=1) - 1
    support = (counts * values > excess).sum(axis=1, keepdims=True)
    threshold = np.take_along_axis(excess, support - 1, axis=1) / support
    return np.maximum(values - threshold, 0), threshold[:, 0]


def _collect(num_anchors: int, found: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> sparse.csr_matrix:
    """The weights that come for some rows at a time, without the zeros, in the order of the rows."""
    blocks = []
    for row_ids, weights, columns in found:
        pointers = np.arange(0, weights.size + 1, weights.shape[1])
        block = sparse.csr_matrix((weights.ravel(), columns.ravel(), pointers), shape=(len(weights), num_anchors))
        block.eliminate_zeros()
        block.sort_indices()
        blocks.append((row_ids, np.diff(block.indptr), block.indices[: block.nnz].astype(np.int32), block.data[: block.nnz].copy()))
    lengths = np.zeros(sum(len(row_ids) for row_ids, *_ in blocks), dtype=np.int64)
    for row_ids, its_lengths, *_ in blocks:
        lengths[row_ids] = its_lengths
    starts = np.concatenate([[0], np.cumsum(lengths)])
    all_columns, all_weights = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float64)
    while blocks:  # each goes as soon as it is in its place
        row_ids, its_lengths, columns, weights = blocks.pop()
        places = np.repeat(starts[row_ids] - np.cumsum(its_lengths) + its_lengths, its_lengths) + np.arange(len(columns))
        all_columns[places], all_weights[places] = columns, weights
    return sparse.csr_matrix((all_weights, all_columns, starts), shape=(len(lengths), num_anchors))
