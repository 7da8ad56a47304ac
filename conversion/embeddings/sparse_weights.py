"""Weights of neighbours by similarity, as sparse matrices: never more than a block of similarities exists at once.

A row of the result says from which anchors, and how much of each, one new row is combined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_VALUES = 1 << 25  # similarities at once: 128 MiB in float32
_FIRST_SUPPORT = 64


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Rows of length one, in float32; rows of zeros stay zeros."""
    lengths = np.linalg.norm(vectors.astype(np.float64, copy=False), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def sparsemax_weights(new: np.ndarray, anchors: np.ndarray, *, temperature: float = 1.0) -> sparse.csr_matrix:
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
    width = min(_FIRST_SUPPORT, len(anchors))

    def project(similarities: Tensor) -> tuple[np.ndarray, np.ndarray]:
        nonlocal width
        while True:
            values, columns = _largest(similarities, width)
            weights = sparsemax_of_sorted(values / temperature)
            # A support that ends inside what was looked at is the whole support; the width found once serves later blocks.
            if width == len(anchors) or not weights[:, -1].any():
                return weights, columns
            width = min(2 * width, len(anchors))

    return _by_blocks(new, anchors, project)


def softmax_weights(new: np.ndarray, anchors: np.ndarray, *, num_neighbors: int, temperature: float) -> sparse.csr_matrix:
    """Softmax over the cosine similarities to the nearest anchors (WECHSEL: Minixhofer et al. 2022, equation 3).

    Args:
        new: (num_new, size), without rows of zeros.
        anchors: (num_anchors, size), without rows of zeros.

    Returns:
        (num_new, num_anchors) float64; each row sums to 1, columns in ascending order.
    """
    width = min(num_neighbors, len(anchors))

    def soften(similarities: Tensor) -> tuple[np.ndarray, np.ndarray]:
        values, columns = _largest(similarities, width)
        weights = np.exp((values - values[:, :1]) / temperature)
        return weights / weights.sum(axis=1, keepdims=True), columns

    return _by_blocks(new, anchors, soften)


def sparsemax_of_sorted(values: np.ndarray) -> np.ndarray:
    """Sparsemax of rows that are sorted from the largest value down, in float64."""
    values = values.astype(np.float64)
    counts = np.arange(1, values.shape[1] + 1)
    excess = np.cumsum(values, axis=1) - 1
    support = (counts * values > excess).sum(axis=1, keepdims=True)
    threshold = np.take_along_axis(excess, support - 1, axis=1) / support
    return np.maximum(values - threshold, 0)


def _largest(similarities: Tensor, width: int) -> tuple[np.ndarray, np.ndarray]:
    values, columns = similarities.topk(width, dim=1, sorted=True)
    return values.double().cpu().numpy(), columns.cpu().numpy()


def _by_blocks(new: np.ndarray, anchors: np.ndarray, weigh: Callable[[Tensor], tuple[np.ndarray, np.ndarray]]) -> sparse.csr_matrix:
    """Weigh the cosine similarities of a block of new vectors after the other, and keep what is not zero."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    columns_of = torch.from_numpy(unit_rows(anchors)).to(device).T
    block_rows = max(1, min(len(new), _BLOCK_VALUES // max(1, len(anchors))))
    blocks = [sparse.csr_matrix((0, len(anchors)), dtype=np.float64)]
    for start in range(0, len(new), block_rows):
        queries = torch.from_numpy(unit_rows(new[start : start + block_rows])).to(device)
        weights, columns = weigh(queries @ columns_of)
        pointers = np.arange(0, weights.size + 1, weights.shape[1])
        block = sparse.csr_matrix((weights.ravel(), columns.ravel(), pointers), shape=(len(weights), len(anchors)))
        block.eliminate_zeros()
        block.sort_indices()
        blocks.append(block)
    return sparse.vstack(blocks, format="csr")
