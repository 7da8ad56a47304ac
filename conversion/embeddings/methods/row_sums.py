"""Rows that are copies or weighted sums of a matrix's rows: what nearly every method ends in.

A compiled loop (row_sums.c) writes each row where it belongs, from float32, bfloat16 or float16.  For other dtypes, and without a compiler, torch does, by way of
a copy of the whole matrix in float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common import native
from common.devices import num_threads

if TYPE_CHECKING:
    from scipy import sparse
    from torch import Tensor

SOURCE = Path(__file__).with_name("row_sums.c")
_KINDS = ("float32", "bfloat16", "float16")  # as the compiled loop numbers them

FillRows = Callable[[int, "Tensor"], None]
"""Writes the rows from a number on, (some_rows, size) in the matrix's dtype; those that are neither copied nor have weights stay as they are."""


def row_filler(source_ids: np.ndarray, weights: sparse.csr_matrix, matrix: Tensor) -> FillRows:
    """What makes rows of a matrix: copies bit for bit, and sums in float32 that are rounded once to its dtype.

    Each sum is taken in the order of its entries, so threads do not change it.

    Args:
        source_ids: (num_rows,) int64, the row to copy; -1 where none is.
        weights: (num_rows, at most num_source_rows), without entries in rows that are copied.
        matrix: (num_source_rows, size), any floating dtype.
    """
    library = native.load(SOURCE, has_equal=True)
    kind = str(matrix.dtype).removeprefix("torch.")
    if library is None or kind not in _KINDS or (kind == "float16" and not library.has_float16()):
        return partial(_fill_by_torch, source_ids, weights, matrix, matrix.float() if weights.nnz else matrix)
    return _Compiled(library, source_ids, weights, matrix)


class _Compiled:
    """`FillRows` of the compiled loop."""

    def __init__(self, library: ctypes.CDLL, source_ids: np.ndarray, weights: sparse.csr_matrix, matrix: Tensor) -> None:
        self._library, self._matrix = library, matrix.contiguous()
        self._kind = _KINDS.index(str(matrix.dtype).removeprefix("torch."))
        self._arrays = (
            np.ascontiguousarray(source_ids, np.int64),
            weights.indptr.astype(np.int64),
            weights.indices.astype(np.int32, copy=False),
            weights.data.astype(np.float64, copy=False),
        )
        self._threads = num_threads()

    def __call__(self, start: int, rows: Tensor) -> None:
        assert rows.is_contiguous() and rows.dtype == self._matrix.dtype
        edges = [start + len(rows) * part // self._threads for part in range(self._threads + 1)]
        parts = [(first, last) for first, last in pairwise(edges) if first < last]
        row_bytes = rows.shape[1] * rows.element_size()

        def fill(part: tuple[int, int]) -> None:
            first, last = part
            self._library.make_rows(
                ctypes.c_void_p(self._matrix.data_ptr()),
                ctypes.c_int(self._kind),
                ctypes.c_long(rows.shape[1]),
                *map(native.address, self._arrays),
                ctypes.c_long(first),
                ctypes.c_long(last),
                ctypes.c_void_p(rows.data_ptr() + (first - start) * row_bytes),
            )

        with ThreadPoolExecutor(max(1, len(parts) - 1)) as others:
            waiting = [others.submit(fill, part) for part in parts[1:]]
            if parts:
                fill(parts[0])
            for done in waiting:
                done.result()


def _fill_by_torch(source_ids: np.ndarray, weights: sparse.csr_matrix, matrix: Tensor, summed: Tensor, start: int, rows: Tensor) -> None:
    """`FillRows` by torch; `summed` is the matrix in float32."""
    import torch
    from torch.nn.functional import embedding_bag

    ids, some = source_ids[start : start + len(rows)], weights[start : start + len(rows)]
    copied, combined = np.flatnonzero(ids >= 0), np.flatnonzero(np.diff(some.indptr))
    rows[torch.from_numpy(copied)] = matrix[torch.from_numpy(ids[copied])]
    if len(combined):
        some = some[combined]
        sums = embedding_bag(
            torch.from_numpy(some.indices.astype(np.int64)),
            summed.contiguous(),
            torch.from_numpy(some.indptr[:-1].astype(np.int64)),
            per_sample_weights=torch.from_numpy(some.data.astype(np.float32)),
            mode="sum",
        )
        rows[torch.from_numpy(combined)] = sums.to(rows.dtype)
