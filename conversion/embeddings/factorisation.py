"""Factorised embeddings: a token matrix as coordinates of each token times primitives that all tokens share (OFA).

OFA (Liu et al. 2024, section 3.1) trains the two factors in place of the matrix, which for 400 dimensions of a model of 768 is half the
parameters.  The coordinates are what differs between tokens, so a transfer makes those of the target and folds them with the primitives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from conversion.embeddings.options import FULL

if TYPE_CHECKING:
    from torch import Tensor

FACTORS_NAME = "factors.safetensors"
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Factors:
    """`coordinates @ primitives` is the matrix, or as near to it as so many dimensions allow.

    The primitives are orthonormal, so that the coordinates have the lengths of the rows that they stand for, and a learning rate that
    suits the matrix suits them.  OFA's code has the scale on the other side: `coordinates / singular_values` and
    `singular_values[:, None] * primitives`.

    Attributes:
        coordinates: (num_tokens, factorised_size) float32.
        primitives: (factorised_size, hidden_size) float32, rows orthonormal, from the largest singular value down.
        singular_values: (factorised_size,) float32, of the matrix that was factorised.
    """

    coordinates: Tensor
    primitives: Tensor
    singular_values: Tensor

    def fold(self) -> Tensor:
        """(num_tokens, hidden_size) float32"""
        return self.coordinates @ self.primitives


def factorise(matrix: Tensor, row_ids: np.ndarray, factorised_size: int) -> Factors:
    """The best factors of so many dimensions: a singular value decomposition of the given rows (Eckart and Young 1936).

    By the eigenvectors of the rows' Gram matrix, gathered in float64 over blocks of rows: beside the coordinates no memory grows with
    the number of rows.

    Args:
        matrix: (num_rows, hidden_size)
        row_ids: (num_ids,) the rows of real tokens; padding rows are left out and have coordinates of zero.
        factorised_size: at most the smaller of len(row_ids) and hidden_size.
    """
    import torch

    hidden_size = matrix.shape[1]
    assert 1 <= factorised_size <= min(len(row_ids), hidden_size)
    blocks = [torch.from_numpy(row_ids[start : start + _BLOCK_ROWS]) for start in range(0, len(row_ids), _BLOCK_ROWS)]
    values, vectors = np.linalg.eigh(_gram(matrix, blocks))
    largest = slice(None, -factorised_size - 1, -1)  # eigh sorts them from the smallest up
    values, vectors = values[largest], vectors[:, largest]
    # A direction and its opposite are both eigenvectors: the largest entry is made positive.
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(factorised_size)])
    directions = torch.from_numpy(np.ascontiguousarray(vectors))
    coordinates = torch.zeros((len(matrix), factorised_size), dtype=torch.float32)
    for ids in blocks:
        coordinates[ids] = (matrix[ids].double() @ directions).float()
    singular_values = torch.from_numpy(np.sqrt(np.maximum(values, 0)))
    return Factors(coordinates, directions.T.float().contiguous(), singular_values.float())


def _gram(matrix: Tensor, blocks: list[Tensor]) -> np.ndarray:
    """(hidden_size, hidden_size) float64, the sums of products of columns; only the lower half is set, which is all that eigh reads."""
    from scipy.linalg.blas import dsyrk

    gram = np.zeros((matrix.shape[1], matrix.shape[1]), order="F")
    for ids in blocks:
        gram = dsyrk(1.0, matrix[ids].double().numpy().T, beta=1.0, c=gram, lower=1, overwrite_c=1)
    return gram


def choose_factorised_size(requested: int | str | None, *, num_tokens: int, hidden_size: int) -> int | None:
    """Dimensions of the coordinates, None for no factorisation.

    Raises:
        ValueError: if there are fewer than requested.
    """
    most = min(num_tokens, hidden_size)
    if requested is None or requested == FULL:
        return None if requested is None else most
    if not 1 <= int(requested) <= most:
        raise ValueError(
            f"--factorised-size is {requested}; expected 1 to {most}, what {num_tokens} source tokens of {hidden_size} dimensions allow, or {FULL}"
        )
    return int(requested)
