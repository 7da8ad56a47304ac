"""Orthogonal matching pursuit: each vector as a sum of a few others, with signs (Pati et al. 1993)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from conversion.embeddings.nearest import row_lengths, unit_rows
from conversion.embeddings.token_vectors import Rows

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_ROWS = 512
_DEPENDENT = 1e-3  # an atom of which less is left beside the chosen ones adds nothing but rounding
_EXACT = 1e-5  # a vector of which less is left is done


def pursuit_weights(vectors: Rows, atoms: Rows, *, num_atoms: int, long_first: bool = False) -> sparse.csr_matrix:
    """Coefficients of the atoms whose sum comes nearest to each vector, chosen one after the other.

    Atoms are compared at length one, as in the textbook; a vector stops early when it is exact or when the next atom is a
    combination of the chosen ones (a twin of one, for instance).

    Args:
        vectors: (num_vectors, size)
        atoms: (num_all_atoms, size), without rows of zeros.
        num_atoms: most atoms of one vector.
        long_first: compare atoms at their own length, so that long ones are chosen sooner.

    Returns:
        (num_vectors, num_all_atoms) float64, coefficients of the atoms at their own length.
    """
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unit = torch.from_numpy(unit_rows(atoms)).to(device)
    lengths = row_lengths(atoms)
    preference = torch.from_numpy(lengths.astype(np.float32)).to(device) if long_first else None
    steps = min(num_atoms, len(atoms), atoms.shape[1])
    parts = [sparse.csr_matrix((0, len(atoms)), dtype=np.float64)]
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = torch.from_numpy(vectors[start : start + _BLOCK_ROWS].astype(np.float32)).to(device)
        chosen, coefficients = (result.cpu().numpy() for result in _pursue(block, unit, steps, preference))
        kept = coefficients != 0
        rows = np.repeat(np.arange(len(block)), kept.sum(axis=1))
        values = coefficients[kept] / lengths[chosen[kept]]
        parts.append(sparse.csr_matrix((values, (rows, chosen[kept])), shape=(len(block), len(atoms))))
    return sparse.vstack(parts, format="csr")


def _pursue(vectors: Tensor, unit: Tensor, steps: int, preference: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids of the chosen unit atoms and their coefficients, both (num_vectors, steps); unused places have coefficient 0.

    Similarities are multiplied by the preference (num_all_atoms,) where there is one.  The chosen atoms are kept as Q R with orthonormal Q, so that each step is one product with all atoms.
    """
    import torch

    num, size = vectors.shape
    basis = torch.zeros(num, steps, size, device=vectors.device)
    triangle = torch.eye(steps, device=vectors.device, dtype=torch.float64).repeat(num, 1, 1)
    projections = torch.zeros(num, steps, device=vectors.device, dtype=torch.float64)
    chosen = torch.zeros(num, steps, device=vectors.device, dtype=torch.long)
    residual = vectors.clone()
    is_open = torch.ones(num, device=vectors.device, dtype=torch.bool)
    scale = vectors.norm(dim=1)
    for step in range(steps):
        is_open &= residual.norm(dim=1) > _EXACT * scale
        if not is_open.any():
            break
        similarity = (residual @ unit.T).abs_()
        if preference is not None:
            similarity *= preference
        similarity.scatter_(1, chosen[:, :step], -1.0)
        best = similarity.max(dim=1).indices  # three times as fast as argmax on a CPU
        atom = unit[best]
        earlier = basis[:, :step]
        inner = torch.zeros(num, step, device=vectors.device)
        rest = atom
        for _ in range(2):  # once more for what rounding left
            overlap = torch.bmm(earlier, rest[:, :, None])[:, :, 0]
            inner += overlap
            rest = rest - torch.bmm(overlap[:, None], earlier)[:, 0]
        left = rest.norm(dim=1)
        is_open &= left > _DEPENDENT
        rest = torch.where(is_open[:, None], rest / left.clamp_min(1e-30)[:, None], 0.0)
        basis[:, step] = rest
        chosen[:, step] = best
        triangle[is_open, :step, step] = inner[is_open].double()
        triangle[is_open, step, step] = left[is_open].double()
        projection = (residual * rest).sum(dim=1)
        projections[:, step] = projection.double()
        residual = residual - projection[:, None] * rest
    coefficients = torch.linalg.solve_triangular(triangle, projections[:, :, None], upper=True)[:, :, 0]
    return chosen, coefficients
