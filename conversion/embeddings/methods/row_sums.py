"""Rows that are copies or weighted sums of a matrix's rows: what nearly every method ends in."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from conversion.formats.lazy_tensor import Bits, FillRows
from conversion.formats.numbers import numbers_of, rounded_to


def row_filler(source_ids: np.ndarray, weights: sparse.csr_matrix, matrix: Bits, dtype_name: str) -> FillRows:
    """What makes rows of a matrix: copies bit for bit, and sums in float32 that are rounded once to its dtype; it leaves the others as they are.

    Each sum is taken in the order of its entries, so blocks of rows do not change it.

    Args:
        source_ids: (num_rows,) int64, the row to copy; -1 where none is.
        weights: (num_rows, at most num_source_rows), without entries in rows that are copied.
        matrix: (num_source_rows, size), the bits of any floating dtype.
        dtype_name: torch's name of it.
    """

    def fill(start: int, rows: Bits) -> None:
        ids, some = source_ids[start : start + len(rows)], weights[start : start + len(rows)]
        copied, summed = np.flatnonzero(ids >= 0), np.flatnonzero(np.diff(some.indptr))
        rows[copied] = matrix[ids[copied]]
        if len(summed):
            some = some[summed]
            used, places = np.unique(some.indices, return_inverse=True)
            taken = sparse.csr_matrix((some.data.astype(np.float32), places, some.indptr), shape=(len(summed), len(used)))
            sums = taken @ numbers_of(matrix[used], dtype_name).astype(np.float32, copy=False)
            rows[summed] = rounded_to(sums, dtype_name)

    return fill
