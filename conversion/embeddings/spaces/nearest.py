"""The most similar anchors of many vectors, exactly.

A compiled loop makes products of 8 bits, which bound the cosine of every pair, and multiplies only those again that may be among the largest (nearest.c).  On a GPU, or
without a compiler, all pairs are products of float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from common import native
from common.devices import has_gpu, num_threads
from conversion.embeddings.spaces.short_table import ShortTable, padded
from conversion.embeddings.spaces.token_vectors import Rows, unit_rows

SOURCE = Path(__file__).with_name("nearest.c")
Weigh = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Found = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids of new vectors, their weights, and the anchors that these belong to
Largest = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""From vectors of length one (num_rows, size) and a width: the largest cosines from the largest down, and their anchors, both (num_rows, width)."""

_BLOCK_VALUES = 1 << 23  # similarities at once, where all are made: 32 MiB in float32
_BLOCK_ROWS = 480  # of the compiled loop's 96: what a thread does at once
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
    library = None if has_gpu() else native.load(SOURCE)
    if library is not None:
        largest: Largest = _Compiled(library, anchors)
        block_rows, threads = _BLOCK_ROWS, num_threads()
    else:
        largest = _of_all_pairs(anchors)
        block_rows, threads = max(1, _BLOCK_VALUES // len(anchors)), 1
    width = min(_FIRST_WIDTH if num_neighbors is None else num_neighbors, len(anchors))
    blocks = [np.arange(start, min(start + block_rows, len(new))) for start in range(0, len(new), block_rows)]

    def weights(ids: np.ndarray) -> list[Found]:
        return list(_weights(largest, new, ids, width, len(anchors), weigh))

    with ThreadPoolExecutor(threads) as pool:
        for block in blocks[:1]:
            num_done, found = 0, weights(block)
            for ids, *_ in found:
                # Where many vectors of the first block need more anchors than that, all others begin with more.
                num_done += len(ids)
                width = width if num_done >= _ENOUGH_DONE * len(block) else min(2 * width, len(anchors))
            yield found
        yield from pool.map(weights, blocks[1:])


def _weights(largest: Largest, new: Rows, ids: np.ndarray, width: int, num_anchors: int, weigh: Weigh) -> Iterator[Found]:
    """The weights of some new vectors, as `nearest_anchors` yields them; those that need more anchors than `width` come later."""
    queries = unit_rows(new[ids])
    while len(ids):
        cosines, columns = largest(queries, min(width + 1, num_anchors))
        weights, threshold = weigh(cosines[:, :width])
        is_done = (threshold >= cosines[:, -1]) | (width == num_anchors)
        yield ids[is_done], weights[is_done], columns[is_done, :width]
        ids, queries, width = ids[~is_done], queries[~is_done], min(2 * width, num_anchors)


class _Compiled:
    """`Largest` of a table of 8 bits, beside the anchors in float32."""

    def __init__(self, library: ctypes.CDLL, anchors: Rows) -> None:
        self.table = ShortTable(library, anchors)
        self._weight = np.zeros(len(self.table.rows), np.float32)
        self._weight[: self.table.num_rows] = 1

    def __call__(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """The largest cosines and their anchors, both (num_rows, width), as `Largest` says."""
        table = self.table
        cosines, columns = np.empty((len(queries), width), np.float32), np.empty((len(queries), width), np.int32)
        arrays = (table.rows, table.numbers, table.unit, table.lost, self._weight, padded(queries))
        sizes = (len(table.rows), table.num_rows, table.rows.shape[1], len(queries), width)
        table.call("nearest_rows", *arrays, *sizes, cosines, columns)
        return cosines.astype(np.float64), columns


def _of_all_pairs(anchors: Rows) -> Largest:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unit = torch.from_numpy(unit_rows(anchors)).to(device)

    def largest(queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        cosines, columns = (torch.from_numpy(queries).to(device) @ unit.T).topk(width, dim=1)
        return cosines.cpu().double().numpy(), columns.cpu().numpy()

    return largest
