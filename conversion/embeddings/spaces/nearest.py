"""Exact nearest neighbours of many vectors: all pairs, in blocks of bounded size, on the GPU if available."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from conversion.embeddings.spaces.token_vectors import Rows, unit_rows

Weigh = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Found = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids of new vectors, their weights, and the anchors that these belong to
Largest = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""From vectors of length one (num_rows, size) and a width: the largest cosines from the largest down, and their anchors, both (num_rows, width)."""

_BLOCK_VALUES = 1 << 23  # similarities at once: 32 MiB in float32
_FIRST_WIDTH = 64
_ENOUGH_DONE = 0.9  # share of new vectors for which the first width should do


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
