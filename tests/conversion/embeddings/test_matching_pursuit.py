"""Orthogonal matching pursuit, beside least squares on the same atoms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conversion.embeddings.methods.matching_pursuit import pursue, pursuit_weights
from conversion.embeddings.spaces.sparse_weights import Columns


def _unit(values: np.ndarray) -> torch.Tensor:
    rows = torch.from_numpy(values.astype(np.float32))
    return rows / rows.norm(dim=1, keepdim=True)


def _case(kind: str, *, num_atoms: int, size: int, num_vectors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Atoms and vectors of one distribution: without structure, of few dimensions and noise, in tight clusters; or with one number that is large."""
    generator = np.random.default_rng(sum(map(ord, kind)))
    shape = (num_atoms + num_vectors, size)
    values = generator.standard_normal(shape)
    if kind == "few dimensions":
        values = generator.standard_normal((len(values), 8)) @ generator.standard_normal((8, size)) + 0.5 * values
    elif kind == "clusters":
        values = generator.standard_normal((20, size))[generator.integers(0, 20, len(values))] + 0.2 * values
    elif kind == "spikes":
        values[np.arange(len(values)), generator.integers(0, size, len(values))] *= 100
    rows = _unit(values)
    return rows[:num_atoms], rows[num_atoms:]


@pytest.mark.parametrize("kind", ["no structure", "few dimensions", "clusters", "spikes"])
@pytest.mark.parametrize("long_first", [False, True])
def test_each_choice_is_the_best_and_the_sum_that_of_least_squares(kind: str, long_first: bool) -> None:
    """The textbook's way, a vector after the other, with numpy's `lstsq` in float64."""
    atoms, vectors = _case(kind, num_atoms=300, size=48, num_vectors=10)
    preference = torch.linspace(0.1, 3.1, 300) if long_first else torch.ones(300)
    chosen, coefficients = pursue(vectors, atoms, 12, preference)
    exact = atoms.double().numpy()
    for vector, ids, found in zip(vectors.double().numpy(), chosen.numpy(), coefficients.numpy(), strict=True):
        for step in range(12):
            solution = np.linalg.lstsq(exact[ids[:step]].T, vector, rcond=None)[0]
            similarity = np.abs(exact @ (vector - solution @ exact[ids[:step]])) * preference.numpy()
            similarity[ids[:step]] = -1
            assert similarity[ids[step]] >= similarity.max() - 1e-4
        np.testing.assert_allclose(found, np.linalg.lstsq(exact[ids].T, vector, rcond=None)[0], atol=2e-3)


def test_a_vector_that_needs_all_its_atoms_is_rebuilt() -> None:
    """Nothing is left of it in the end."""
    atoms, vectors = _case("few dimensions", num_atoms=1500, size=40, num_vectors=30)
    chosen, coefficients = pursue(vectors, atoms, 40, torch.ones(len(atoms)))
    sums = torch.einsum("vs,vsd->vd", coefficients.float(), atoms[chosen])
    torch.testing.assert_close(sums, vectors, atol=2e-3, rtol=0)


def test_twins_and_exact_vectors_end_early() -> None:
    atoms, _ = _case("no structure", num_atoms=60, size=32, num_vectors=1)
    atoms = torch.cat([atoms, atoms[:20]])
    vectors = torch.stack([atoms[3], _unit((atoms[5] + 2 * atoms[40])[None].numpy())[0], torch.zeros(32)])
    chosen, coefficients = pursue(vectors, atoms, 8, torch.ones(len(atoms)))
    assert (coefficients != 0).sum(dim=1).tolist() == [1, 2, 0]
    torch.testing.assert_close(torch.einsum("vs,vsd->vd", coefficients.float(), atoms[chosen]), vectors, atol=1e-5, rtol=0)


def test_blocks_do_not_change_the_rows() -> None:
    generator = np.random.default_rng(0)
    atoms, vectors = generator.standard_normal((500, 16)), generator.standard_normal((1000, 16))
    columns = Columns(np.arange(len(atoms)), len(atoms))
    together = pursuit_weights(vectors, atoms, columns, num_atoms=4).toarray()
    alone = np.concatenate([pursuit_weights(one[None], atoms, columns, num_atoms=4).toarray() for one in vectors[::100]])
    np.testing.assert_allclose(together[::100], alone, atol=1e-5)
