"""Vectors of tokens in an auxiliary space, in which distance measures similarity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from conversion.formats.lazy_tensor import release_pages

_BLOCK_ROWS = 4096


class Rows(Protocol):
    """Rows that can be had some at a time: an array, or what makes them when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_rows, size)"""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, which: slice | np.ndarray, /) -> np.ndarray: ...


@dataclass(frozen=True)
class ChosenRows:
    """Some rows of a table, gathered when they are asked for: all at once they would take the table's memory again.

    Of a table that is mapped from a file no more stays in memory than what was asked for last.
    """

    table: Rows
    indices: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_chosen_rows, size)"""
        return (len(self.indices), *self.table.shape[1:])

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, which: slice | np.ndarray, /) -> np.ndarray:
        rows = self.table[self.indices[which]]  # a copy, as they are chosen by number
        release_pages(self.table)
        return rows


def unit_rows(vectors: Rows) -> np.ndarray:
    """(len(vectors), size) rows of length one, in float32; rows of zeros stay zeros."""
    unit = np.empty(vectors.shape, dtype=np.float32)
    for start in range(0, len(vectors), _BLOCK_ROWS):  # in blocks: the lengths are taken in float64
        block = vectors[start : start + _BLOCK_ROWS].astype(np.float64)
        lengths = np.linalg.norm(block, axis=1, keepdims=True)
        unit[start : start + _BLOCK_ROWS] = block / np.where(lengths > 0, lengths, 1)
    return unit


def row_lengths(vectors: Rows) -> np.ndarray:
    """(len(vectors),) Euclidean lengths, in float64."""
    blocks = (vectors[start : start + _BLOCK_ROWS] for start in range(0, len(vectors), _BLOCK_ROWS))
    return np.concatenate([np.zeros(0), *(np.linalg.norm(block.astype(np.float64), axis=1) for block in blocks)])


@dataclass(frozen=True)
class TokenVectors:
    """Vectors of some of the tokens of a vocabulary.

    Attributes:
        vectors: (num_rows, size) float32; those of tokens are not all zeros.
        index: (num_tokens,) row of each token in `vectors`, -1 where it has none.
    """

    vectors: Rows
    index: np.ndarray

    @classmethod
    def of(cls, vectors: np.ndarray, ids: np.ndarray, num_tokens: int) -> TokenVectors:
        """The vectors (num_vectors, size) of the given token ids (num_vectors,); vectors of zeros say nothing and are left out."""
        known = np.flatnonzero(np.any(vectors != 0, axis=1))
        index = np.full(num_tokens, -1, dtype=np.int64)
        index[ids[known]] = np.arange(len(known))
        return cls(vectors if len(known) == len(vectors) else vectors[known], index)

    @property
    def is_known(self) -> np.ndarray:
        """(num_tokens,) bool: the token has a vector."""
        return self.index >= 0

    def rows(self, ids: np.ndarray) -> ChosenRows:
        """(len(ids), size) vectors of tokens that have one."""
        return ChosenRows(self.vectors, self.index[ids])
