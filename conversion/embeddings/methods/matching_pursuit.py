"""Orthogonal matching pursuit: each vector as a sum of a few others, with signs (Pati et al. 1993)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from conversion.embeddings.spaces.sparse_weights import Columns
from conversion.embeddings.spaces.stored_rows import StoredRows
from conversion.embeddings.spaces.token_vectors import Rows, row_lengths, unit_rows

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_ROWS = 128  # whose chosen atoms stay in a cache
_DEPENDENT = 1e-3  # an atom of which less is left beside the chosen ones adds nothing but rounding
_OPEN_SHARE = 0.9  # of the vectors at hand, below which the others are left out
_EXACT = 1e-5  # a vector of which less is left is done


def pursuit_weights(vectors: Rows, atoms: Rows, columns: Columns, *, num_atoms: int, long_first: bool = False) -> sparse.csr_matrix:
    """Coefficients of the atoms whose sum comes nearest to each vector, chosen one after the other.

    Atoms are compared at length one, as in the textbook; a vector stops early when it is exact or when the next atom is a
    combination of the chosen ones (a twin of one, for instance).

    Args:
        vectors: (num_vectors, size)
        atoms: (num_all_atoms, size), without rows of zeros.
        num_atoms: most atoms of one vector.
        long_first: compare atoms at their own length, so that long ones are chosen sooner.

    Returns:
        (num_vectors, columns.num_columns) float64, mapped from a file: coefficients of the atoms at their own length.
    """
    import torch

    lengths = row_lengths(atoms)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    unit = torch.from_numpy(unit_rows(atoms)).to(device)
    preference = torch.from_numpy(lengths.astype(np.float32) if long_first else np.ones(len(atoms), np.float32)).to(device)
    steps = min(num_atoms, len(atoms), atoms.shape[1])

    rows = StoredRows(columns.num_columns)
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = vectors[start : start + _BLOCK_ROWS].astype(np.float32)
        scale = np.linalg.norm(block, axis=1, keepdims=True)
        found = pursue(torch.from_numpy(block / np.maximum(scale, 1e-30)).to(device), unit, steps, preference)
        ids, coefficients = (values.cpu().numpy() for values in found)
        coefficients = coefficients * scale / lengths[ids]
        kept = coefficients != 0
        starts = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
        rows.append(columns.renamed(sparse.csr_matrix((coefficients[kept], ids[kept], starts), shape=(len(block), len(atoms)))))
    return rows.matrix()


def pursue(vectors: Tensor, unit: Tensor, steps: int, preference: Tensor) -> tuple[Tensor, Tensor]:
    """Ids of the chosen unit atoms and their coefficients for vectors of length one, both (num_vectors, steps); unused places have coefficient 0.

    Similarities are multiplied by the preference (num_all_atoms,).  The chosen atoms are kept as Q R with orthonormal Q, so that each step is one product with all atoms.
    """
    import torch

    num, size = vectors.shape
    chosen = torch.zeros(num, steps, device=vectors.device, dtype=torch.long)
    triangle = torch.eye(steps, device=vectors.device, dtype=torch.float64).repeat(num, 1, 1)
    projections = torch.zeros(num, steps, device=vectors.device, dtype=torch.float64)
    rows = torch.arange(num, device=vectors.device)  # of the vectors that are looked at, most of them open
    residual, basis = vectors.clone(), torch.zeros(num, steps, size, device=vectors.device)
    is_open = residual.norm(dim=1) > _EXACT
    for step in range(steps):
        if is_open.sum() <= _OPEN_SHARE * len(rows):
            rows, residual, basis, is_open = rows[is_open], residual[is_open], basis[is_open], is_open[is_open]
        if not len(rows):
            break
        similarity = (residual @ unit.T).abs_().mul_(preference)
        similarity.scatter_(1, chosen[rows, :step], -1.0)
        best = similarity.max(dim=1).indices  # three times as fast as argmax on a CPU
        rest, earlier = unit[best], basis[:, :step]
        inner = torch.zeros(len(rows), step, device=vectors.device)
        for _ in range(2):  # once more for what rounding left
            overlap = torch.bmm(rest[:, None], earlier.mT)  # as a column it takes eight times as long on a CPU
            inner += overlap[:, 0]
            rest = torch.baddbmm(rest[:, None], overlap, earlier, alpha=-1)[:, 0]
        left = rest.norm(dim=1)
        is_open &= left > _DEPENDENT
        rest = torch.where(is_open[:, None], rest / left.clamp_min(1e-30)[:, None], 0.0)
        projection = (residual * rest).sum(dim=1)
        residual -= projection[:, None] * rest
        basis[:, step], chosen[rows, step], projections[rows, step] = rest, best, projection.double()
        triangle[rows[is_open], :step, step] = inner[is_open].double()
        triangle[rows[is_open], step, step] = left[is_open].double()
        is_open &= residual.norm(dim=1) > _EXACT
    coefficients = torch.linalg.solve_triangular(triangle, projections[:, :, None], upper=True)[:, :, 0]
    return chosen, coefficients
