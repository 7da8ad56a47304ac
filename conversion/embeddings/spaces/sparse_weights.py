"""Weights of neighbours by similarity, and of spelled tokens, as sparse matrices; similarities exist one block at a time.

A row of the result says from which anchors, and how much of each, one new row is combined.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from conversion.embeddings.spaces.stored_rows import StoredRows
from conversion.embeddings.spaces.token_vectors import Rows, unit_rows
from conversion.embeddings.vocabularies.vocabulary import Vocabulary

Weigh = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Found = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids of new vectors, their weights, and the anchors that these belong to
Largest = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""From vectors of length one (num_rows, size) and a width: the largest cosines from the largest down, and their anchors, both (num_rows, width)."""
_BLOCK_VALUES = 1 << 23  # similarities at once: 32 MiB in float32
_FIRST_WIDTH = 64
_ENOUGH_DONE = 0.9  # share of new vectors for which the first width should do


@dataclass(frozen=True)
class Columns:
    """Where the weights of anchors belong.

    Attributes:
        of_anchors: (num_anchors,) the column of each; several may have one.
        num_columns: of the matrix.
    """

    of_anchors: np.ndarray
    num_columns: int

    def renamed(self, weights: sparse.csr_matrix) -> sparse.csr_matrix:
        """Weights (num_rows, num_anchors) as (num_rows, num_columns), in ascending order; those of one column add up."""
        columns = self.of_anchors.astype(np.int32)[weights.indices]
        renamed = sparse.csr_matrix((weights.data, columns, weights.indptr), shape=(weights.shape[0], self.num_columns))
        renamed.sum_duplicates()
        return renamed


def sparsemax_weights(new: Rows, anchors: Rows, columns: Columns, *, temperature: float = 1.0) -> sparse.csr_matrix:
    """Sparsemax of the cosine similarities of new vectors to anchors (Martins and Astudillo 2016, algorithm 1).

    The Euclidean projection of the similarities on the simplex: most weights are exactly zero.  Only the largest similarities can
    be in the support, so the projection is computed of as many as it takes, in float64.

    Args:
        new: (num_new, size), without rows of zeros.
        anchors: (num_anchors, size), without rows of zeros.
        temperature: similarities are divided by it; below 1 fewer anchors take part.

    Returns:
        (num_new, columns.num_columns) float64, mapped from a file; each row sums to 1, columns in ascending order.
    """

    def project(similarities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights, threshold = sparsemax_of_sorted(similarities / temperature)
        return weights, threshold * temperature

    return _stored(nearest_anchors(new, anchors, project), columns)


def softmax_weights(new: Rows, anchors: Rows, columns: Columns, *, num_neighbors: int, temperature: float) -> sparse.csr_matrix:
    """Softmax over the cosine similarities to the nearest anchors (WECHSEL: Minixhofer et al. 2022, equation 3).

    Args:
        new: (num_new, size), without rows of zeros.
        anchors: (num_anchors, size), without rows of zeros.

    Returns:
        (num_new, columns.num_columns) float64, mapped from a file; each row sums to 1, columns in ascending order.
    """
    width = min(num_neighbors, len(anchors))

    def soften(similarities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = np.exp((similarities - similarities[:, :1]) / temperature)
        weights[:, width:] = 0
        return weights / weights.sum(axis=1, keepdims=True), similarities[:, width - 1]

    return _stored(nearest_anchors(new, anchors, soften, num_neighbors=width), columns)


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


def _stored(found: Iterable[list[Found]], columns: Columns) -> sparse.csr_matrix:
    """The weights of one block of rows after the other, without the zeros."""
    rows = StoredRows(columns.num_columns)
    for parts in found:
        order = np.argsort(np.concatenate([row_ids for row_ids, *_ in parts]))
        block = sparse.vstack([_nonzero(*part, len(columns.of_anchors)) for part in parts], format="csr")
        rows.append(columns.renamed(block[order]))
    return rows.matrix()


def _nonzero(row_ids: np.ndarray, weights: np.ndarray, anchors: np.ndarray, num_anchors: int) -> sparse.csr_matrix:
    """(len(row_ids), num_anchors), columns in ascending order."""
    pointers = np.arange(0, weights.size + 1, weights.shape[1])
    rows = sparse.csr_matrix((weights.ravel(), anchors.ravel(), pointers), shape=(len(row_ids), num_anchors))
    rows.eliminate_zeros()
    rows.sort_indices()
    return rows


def piece_weights(source: Vocabulary, target: Vocabulary, ids: np.ndarray) -> sparse.csr_matrix:
    """Weights of the unweighted mean of the pieces into which the source cuts target tokens; a piece that occurs twice counts twice.

    Args:
        ids: (num_ids,) of the target; a token that stands for no bytes has no pieces.

    Returns:
        (num_ids, len(source)) float64; each row sums to 1, or has no entries where the source has no piece of the token.
    """
    columns, ends = array("i"), array("q", [0])  # numbers of 4 and 8 bytes: as lists they would be most of what a transfer holds
    for target_id in ids.tolist():
        columns.extend(source.pieces(target.token_bytes[target_id] or b""))
        ends.append(len(columns))
    starts = np.array(ends, np.int64)
    lengths = np.diff(starts)
    values = np.repeat(1 / np.maximum(lengths, 1), lengths)
    weights = sparse.csr_matrix((values, np.array(columns, np.int32), starts), shape=(len(ids), len(source)))
    weights.sum_duplicates()
    return weights


def nearest_anchors(new: Rows, anchors: Rows, weigh: Weigh, *, num_neighbors: int | None = None) -> Iterator[list[Found]]:
    """The weights of as many of each new vector's nearest anchors as matter, for a block of new vectors after the other.

    Args:
        new: (num_new, size), without rows of zeros.
        anchors: (num_anchors, size), without rows of zeros.
        weigh: from cosines (num_rows, width), each row sorted from the largest down, weights (num_rows, width), and (num_rows,) the cosine
            below which an anchor has no weight whatever other anchors there are.
        num_neighbors: how many `weigh` needs, if there are so many anchors; None if it depends on the cosines.

    Yields:
        of a block all parts, which differ in width: ids of new vectors (num_rows,), their weights (num_rows, width) float64, and the anchors
        that these belong to (num_rows, width)
    """
    largest = _largest_cosines(anchors)
    block_rows = max(1, _BLOCK_VALUES // len(anchors))
    width = min(_FIRST_WIDTH if num_neighbors is None else num_neighbors, len(anchors))
    for start in range(0, len(new), block_rows):
        ids = np.arange(start, min(start + block_rows, len(new)))
        num_done, found = 0, list(_weights(largest, new, ids, width, len(anchors), weigh))
        if start == 0:
            for some_ids, *_ in found:
                # Where many vectors of the first block need more anchors than that, all others begin with more.
                num_done += len(some_ids)
                width = width if num_done >= _ENOUGH_DONE * len(ids) else min(2 * width, len(anchors))
        yield found


def _weights(largest: Largest, new: Rows, ids: np.ndarray, width: int, num_anchors: int, weigh: Weigh) -> Iterator[Found]:
    """The weights of some new vectors, as `nearest_anchors` yields them; those that need more anchors than `width` come later."""
    queries = unit_rows(new[ids])
    while len(ids):
        cosines, columns = largest(queries, min(width + 1, num_anchors))
        weights, threshold = weigh(cosines[:, :width])
        is_done = (threshold >= cosines[:, -1]) | (width == num_anchors)
        yield ids[is_done], weights[is_done], columns[is_done, :width]
        ids, queries, width = ids[~is_done], queries[~is_done], min(2 * width, num_anchors)


def _largest_cosines(anchors: Rows) -> Largest:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unit = torch.from_numpy(unit_rows(anchors)).to(device)

    def largest(queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        cosines, columns = (torch.from_numpy(queries).to(device) @ unit.T).topk(width, dim=1)
        return cosines.cpu().double().numpy(), columns.cpu().numpy()

    return largest
