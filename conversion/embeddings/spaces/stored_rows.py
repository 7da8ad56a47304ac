"""Rows of a sparse matrix spilled to a temporary file as they come: for a large vocabulary they need more memory than everything else."""

from __future__ import annotations

import errno
import mmap
from tempfile import TemporaryFile, gettempdir
from typing import IO

import numpy as np
from scipy import sparse

from conversion.formats.lazy_tensor import release_pages


class StoredRows:
    """Rows put below each other; the file has no name, lies where `TMPDIR` says, and goes with the matrix that is mapped from it."""

    def __init__(self, num_columns: int) -> None:
        self._num_columns = num_columns
        self._lengths = [np.zeros(0, np.int64)]
        self._columns, self._weights = TemporaryFile(), TemporaryFile()  # noqa: SIM115 (`matrix` closes them)

    def append(self, rows: sparse.csr_matrix) -> None:
        """Write rows (num_rows, num_columns) below those that are there.

        Raises:
            ValueError: if there is no room for them.
        """
        self._lengths.append(np.diff(rows.indptr))
        _write(self._columns, rows.indices.astype(np.int32, copy=False))
        _write(self._weights, rows.data.astype(np.float64, copy=False))

    def matrix(self) -> sparse.csr_matrix:
        """All rows, (num_rows, num_columns) float64, to be read alone; nothing can be appended after."""
        starts = np.cumsum(np.concatenate([[0], *self._lengths]))
        columns, weights = _mapped(self._columns, np.dtype(np.int32)), _mapped(self._weights, np.dtype(np.float64))
        return sparse.csr_matrix((weights, columns, starts), shape=(len(starts) - 1, self._num_columns))


def release_rows(rows: sparse.csr_matrix) -> None:
    """Give back the memory of what was read of rows, (num_rows, num_columns), that are mapped from a file; does nothing to others."""
    release_pages(rows.data)
    release_pages(rows.indices)


def _write(file: IO[bytes], numbers: np.ndarray) -> None:
    try:
        file.write(numbers.data)
        file.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ValueError(
            f"{gettempdir()} is too full for the weights of new tokens, 12 bytes each; free some space, or set TMPDIR to another folder"
        ) from error


def _mapped(file: IO[bytes], dtype: np.dtype) -> np.ndarray:
    """The numbers in a file, which is closed."""
    with file:
        size = file.tell()
        return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), dtype) if size else np.empty(0, dtype)
