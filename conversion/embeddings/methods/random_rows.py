"""Random rows that depend on the seed and on the token alone, not on its place in the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from conversion.formats.lazy_tensor import LazyTensor, release_pages
from conversion.formats.numbers import Numbers, numbers_of

_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class RowStatistics:
    """Mean and standard deviation of the rows of a matrix, both (size,) float64."""

    mean: np.ndarray
    deviation: np.ndarray


def row_statistics(matrix: LazyTensor, row_ids: np.ndarray, *, over: str = "dimension") -> RowStatistics:
    """Mean and standard deviation over the given rows, in float64.

    Args:
        matrix: (num_rows, size), any floating dtype; read some rows at a time.
        row_ids: (num_ids,) the rows of real tokens, each once; the padding rows that many models have would pull both towards zero.
        over: `dimension`, one mean and deviation per dimension (as the code of WECHSEL, FOCUS and CLP-Transfer does), or
            `matrix`, one of each over all values.
    """
    is_taken = np.zeros(matrix.shape[0], dtype=bool)
    is_taken[row_ids] = True
    sums, done = np.zeros((2, matrix.shape[1])), 0
    for block in matrix.checked_blocks():
        for first in range(0, len(block), _BLOCK_ROWS):  # a block is the whole matrix where that is in memory
            part = block[first : first + _BLOCK_ROWS]
            rows = numbers_of(part[is_taken[done : done + len(part)]], matrix.dtype_name).astype(np.float64)
            sums += rows.sum(axis=0), np.square(rows).sum(axis=0)
            done += len(part)
            release_pages(block)
    mean, mean_square = sums / len(row_ids)
    if over == "matrix":
        mean, mean_square = np.full_like(mean, mean.mean()), np.full_like(mean, mean_square.mean())
    # In float64 the difference keeps all digits of values in half or single precision.
    return RowStatistics(mean, np.sqrt(np.maximum(mean_square - np.square(mean), 0)))


def random_rows(keys: Sequence[str], statistics: RowStatistics, *, seed: int, layer: str) -> Numbers:
    """Draw a row per key from a normal distribution per dimension.

    Args:
        keys: `Vocabulary.keys` of the tokens.
        layer: name of the matrix: the same token has other draws in another matrix.

    Returns:
        (len(keys), size) float32
    """
    deviation, mean = statistics.deviation.astype(np.float32), statistics.mean.astype(np.float32)
    rows: Numbers = np.empty((len(keys), len(mean)), dtype=np.float32)
    for row, key in zip(rows, keys, strict=True):
        # A counter-based generator takes its key as it is: nothing to warm up, 80,000 of them cost a second.
        generator = np.random.Philox(key=xxhash.xxh3_128_intdigest(f"{layer}\0{seed}\0{key}".encode()))
        np.random.Generator(generator).standard_normal(dtype=np.float32, out=row)
    rows *= deviation
    rows += mean
    return rows
