"""Rows as compiled loops want them: padded, in float32 and in 8 bits (see common/short_products.h)."""

from __future__ import annotations

import ctypes

import numpy as np

from common import native
from conversion.embeddings.spaces.token_vectors import Rows, unit_rows

_PANEL = 32  # rows that the compiled loops treat as one
_LANES = 16  # and numbers of a row
_ALIGNMENT = 64
_BLOCK_ROWS = 4096


class ShortTable:
    """Rows of length one, for a library that includes short_products.h.

    Attributes:
        num_rows: without padding.
        rows: (num_padded, padded_size) float32, what is padded is 0.
        numbers, unit, lost: (num_padded, padded_size) uint8, (num_padded,) and (num_padded,) float32, as `short_table` of the header writes them.

    Args:
        vectors: (num_rows, size) of any length but 0.
    """

    def __init__(self, library: ctypes.CDLL, vectors: Rows) -> None:
        self._library = library
        self.num_rows, size = vectors.shape
        num_padded = -(-self.num_rows // _PANEL) * _PANEL
        self.rows = _zeros(num_padded, size)
        for start in range(0, self.num_rows, _BLOCK_ROWS):
            block = unit_rows(vectors[start : start + _BLOCK_ROWS])
            self.rows[start : start + len(block), :size] = block
        self.numbers = np.empty(self.rows.shape, np.uint8)
        self.unit, self.lost = np.empty(num_padded, np.float32), np.empty(num_padded, np.float32)
        self.call("short_table", self.rows, *self.rows.shape, self.numbers, self.unit, self.lost)

    def call(self, name: str, *values: np.ndarray | int) -> None:
        """Call a loop of the library with the addresses of arrays, of any shape, and whole numbers.

        Raises:
            MemoryError: if the loop found none.
        """
        passed = [native.address(value) if isinstance(value, np.ndarray) else ctypes.c_long(value) for value in values]
        if self._library[name](*passed) != 0:
            raise MemoryError(f"no memory for a block of {name}")


def padded(vectors: np.ndarray) -> np.ndarray:
    """(num_rows, padded_size) float32 copy of rows (num_rows, size), as the compiled loops want them."""
    rows = _zeros(*vectors.shape)
    rows[:, : vectors.shape[1]] = vectors
    return rows


def _zeros(num_rows: int, size: int) -> np.ndarray:
    """(num_rows, padded_size) float32 that begin at a multiple of the alignment."""
    padded_size = -(-size // _LANES) * _LANES
    num_bytes = num_rows * padded_size * 4
    raw = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes].view(np.float32).reshape(num_rows, padded_size)
