"""Rows that are copies or weighted sums of a matrix's rows: what nearly every method ends in.

A compiled loop (row_sums.c) writes each row where it belongs, from float32, bfloat16 or float16.  For other dtypes, and without a compiler, torch does, by way of
a copy of the whole matrix in float32.  Rows come and go as bits, so that torch, which takes longer to import than a gigabyte of rows to make, is loaded for those alone.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common import native
from common.short_work import ShortWork
from conversion.formats.lazy_tensor import Bits, FillRows, bits_of

if TYPE_CHECKING:
    from scipy import sparse

SOURCE = Path(__file__).with_name("row_sums.c")
_KINDS = ("float32", "bfloat16", "float16")  # as the compiled loop numbers them


def row_filler(source_ids: np.ndarray, weights: sparse.csr_matrix, matrix: Bits, dtype_name: str) -> FillRows:
    """What makes rows of a matrix: copies bit for bit, and sums in float32 that are rounded once to its dtype; it leaves the others as they are.

    Each sum is taken in the order of its entries, so threads do not change it.

    Args:
        source_ids: (num_rows,) int64, the row to copy; -1 where none is.
        weights: (num_rows, at most num_source_rows), without entries in rows that are copied.
        matrix: (num_source_rows, size), the bits of any floating dtype.
        dtype_name: torch's name of it.
    """
    library = native.load(SOURCE, has_equal=True)
    if library is None or dtype_name not in _KINDS or (dtype_name == "float16" and not library.has_float16()):
        return _by_torch(source_ids, weights, matrix, dtype_name)
    return _Compiled(library, source_ids, weights, matrix, _KINDS.index(dtype_name))


class _Compiled:
    """`FillRows` of the compiled loop."""

    def __init__(self, library: ctypes.CDLL, source_ids: np.ndarray, weights: sparse.csr_matrix, matrix: Bits, kind: int) -> None:
        self._library, self._matrix, self._kind = library, np.ascontiguousarray(matrix), kind
        self._arrays = (
            np.ascontiguousarray(source_ids, np.int64),
            weights.indptr.astype(np.int64),
            weights.indices.astype(np.int32, copy=False),
            weights.data.astype(np.float64, copy=False),
        )
        self._threads = ShortWork()

    def __call__(self, start: int, rows: Bits) -> None:
        assert rows.flags.c_contiguous and rows.dtype == self._matrix.dtype
        row_bytes = rows.shape[1] * rows.itemsize

        def fill(first: int, last: int) -> None:
            self._library.make_rows(
                native.address(self._matrix),
                ctypes.c_int(self._kind),
                ctypes.c_long(rows.shape[1]),
                *map(native.address, self._arrays),
                ctypes.c_long(start + first),
                ctypes.c_long(start + last),
                ctypes.c_void_p(rows.ctypes.data + first * row_bytes),
            )

        self._threads(len(rows), fill)


def _by_torch(source_ids: np.ndarray, weights: sparse.csr_matrix, matrix: Bits, dtype_name: str) -> FillRows:
    """`FillRows` by torch."""
    import torch
    from torch.nn.functional import embedding_bag

    dtype = getattr(torch, dtype_name)
    summed = torch.from_numpy(np.ascontiguousarray(matrix)).view(dtype).float() if weights.nnz else None

    def fill(start: int, rows: Bits) -> None:
        ids, some = source_ids[start : start + len(rows)], weights[start : start + len(rows)]
        copied, combined = np.flatnonzero(ids >= 0), np.flatnonzero(np.diff(some.indptr))
        rows[copied] = matrix[ids[copied]]
        if summed is not None and len(combined):
            some = some[combined]
            sums = embedding_bag(
                torch.from_numpy(some.indices.astype(np.int64)),
                summed,
                torch.from_numpy(some.indptr[:-1].astype(np.int64)),
                per_sample_weights=torch.from_numpy(some.data.astype(np.float32)),
                mode="sum",
            )
            rows[combined] = bits_of(sums.to(dtype))

    return fill
