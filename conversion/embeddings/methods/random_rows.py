"""Random rows that depend on the seed and on the token alone, not on its place in the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class RowStatistics:
    """Mean and standard deviation of the rows of a matrix, both (size,) float64."""

    mean: np.ndarray
    deviation: np.ndarray


def row_statistics(matrix: Tensor, row_ids: np.ndarray, *, over: str = "dimension") -> RowStatistics:
    """Mean and standard deviation over the given rows, in float64.

    Args:
        matrix: (num_rows, size)
        row_ids: (num_ids,) the rows of real tokens; the padding rows that many models have would pull both towards zero.
        over: `dimension`, one mean and deviation per dimension (as the code of WECHSEL, FOCUS and CLP-Transfer does), or
            `matrix`, one of each over all values.
    """
    import torch

    total, squares = torch.zeros(2, matrix.shape[1], dtype=torch.float64)
    for start in range(0, len(row_ids), _BLOCK_ROWS):
        rows = matrix[torch.from_numpy(row_ids[start : start + _BLOCK_ROWS])].double()
        total += rows.sum(dim=0)
        squares += rows.square_().sum(dim=0)
    mean, mean_square = total / len(row_ids), squares / len(row_ids)
    if over == "matrix":
        mean, mean_square = mean.mean().expand_as(mean), mean_square.mean().expand_as(mean)
    # In float64 the difference keeps all digits of values in half or single precision.
    variance = (mean_square - mean.square()).clamp_min(0)
    return RowStatistics(mean.numpy().copy(), variance.sqrt().numpy().copy())


def random_rows(keys: Sequence[str], statistics: RowStatistics, *, seed: int, layer: str) -> np.ndarray:
    """Draw a row per key from a normal distribution per dimension.

    Args:
        keys: `Vocabulary.keys` of the tokens.
        layer: name of the matrix: the same token has other draws in another matrix.

    Returns:
        (len(keys), size) float32
    """
    rows = np.empty((len(keys), len(statistics.mean)), dtype=np.float32)
    for row, key in zip(rows, keys):
        bits = xxhash.xxh3_128_intdigest(f"{layer}\0{seed}\0{key}".encode())
        # A counter-based generator takes its key as it is: nothing to warm up, 80,000 of them cost a second.
        row[:] = np.random.Generator(np.random.Philox(key=bits)).standard_normal(len(row), dtype=np.float32)
    rows *= statistics.deviation.astype(np.float32)
    rows += statistics.mean.astype(np.float32)
    return rows
