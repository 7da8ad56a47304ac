"""The compiled pursuit makes the choices of the plain one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from common import native
from conversion.embeddings.methods import matching_pursuit
from conversion.embeddings.methods.matching_pursuit import SOURCE, CompiledPursuit, plain_pursuit, pursuit_weights
from conversion.embeddings.spaces.sparse_weights import Columns


def _unit(values: np.ndarray) -> torch.Tensor:
    rows = torch.from_numpy(values.astype(np.float32))
    return rows / rows.norm(dim=1, keepdim=True)


def _case(kind: str, *, num_atoms: int, size: int, num_vectors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Atoms and vectors of one distribution: without structure, of few dimensions and noise, in tight clusters, or with one number so large that 8 bits keep little else."""
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


def _pursued(
    library, atoms: torch.Tensor, steps: int, preference: torch.Tensor, vectors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    chosen, coefficients = CompiledPursuit(library, atoms.numpy(), steps, preference.numpy())(vectors.numpy())
    return torch.from_numpy(chosen).long(), torch.from_numpy(coefficients)


@pytest.fixture
def library() -> object:
    library = native.load(SOURCE)
    if library is None:
        pytest.skip("no C compiler: the plain pursuit is used everywhere")
    return library


@pytest.mark.parametrize("kind", ["no structure", "few dimensions", "clusters", "spikes"])
@pytest.mark.parametrize(("num_atoms", "size", "steps"), [(2000, 100, 30), (700, 48, 20), (90, 33, 12), (5, 4, 4)])
@pytest.mark.parametrize("long_first", [False, True])
def test_compiled_choices_are_the_plain_ones(library, kind: str, num_atoms: int, size: int, steps: int, long_first: bool) -> None:
    atoms, vectors = _case(kind, num_atoms=num_atoms, size=size, num_vectors=40)
    lengths = torch.rand(num_atoms, generator=torch.Generator().manual_seed(0)) * 3 + 0.1
    preference = lengths if long_first else torch.ones(num_atoms)
    chosen, coefficients = _pursued(library, atoms, steps, preference, vectors)
    plain, plain_coefficients = plain_pursuit(vectors, atoms, steps, preference)
    used = coefficients != 0
    assert torch.equal(used, plain_coefficients != 0)
    same = (torch.where(used, chosen, -1) == torch.where(used, plain, -1)).all(dim=1)
    assert same.float().mean() >= 0.95  # two atoms whose similarities differ by rounding only may change places
    torch.testing.assert_close(coefficients[same], plain_coefficients[same], atol=2e-4, rtol=1e-3)
    sums, plain_sums = (torch.einsum("vs,vsd->vd", c.float(), atoms[i]) for i, c in ((chosen, coefficients), (plain, plain_coefficients)))
    torch.testing.assert_close(sums, plain_sums, atol=0.05, rtol=0)


def test_a_vector_that_needs_all_its_atoms_is_rebuilt(library) -> None:
    """Nothing is left of it in the end: products far below what 8 bits tell apart."""
    atoms, vectors = _case("few dimensions", num_atoms=1500, size=40, num_vectors=30)
    chosen, coefficients = _pursued(library, atoms, 40, torch.ones(len(atoms)), vectors)
    sums = torch.einsum("vs,vsd->vd", coefficients.float(), atoms[chosen])
    torch.testing.assert_close(sums, vectors, atol=2e-3, rtol=0)


def test_twins_and_exact_vectors_end_early(library) -> None:
    atoms, _ = _case("no structure", num_atoms=60, size=32, num_vectors=1)
    atoms = torch.cat([atoms, atoms[:20]])
    vectors = torch.stack([atoms[3], _unit((atoms[5] + 2 * atoms[40])[None].numpy())[0], torch.zeros(32)])
    chosen, coefficients = _pursued(library, atoms, 8, torch.ones(len(atoms)), vectors)
    assert (coefficients != 0).sum(dim=1).tolist() == [1, 2, 0]
    torch.testing.assert_close(torch.einsum("vs,vsd->vd", coefficients.float(), atoms[chosen]), vectors, atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_neither_threads_nor_blocks_nor_a_missing_compiler_change_the_rows(monkeypatch: pytest.MonkeyPatch, num_threads: int) -> None:
    generator = np.random.default_rng(0)
    atoms, vectors = generator.standard_normal((500, 16)), generator.standard_normal((1000, 16))
    monkeypatch.setattr(matching_pursuit, "num_threads", lambda: num_threads)
    columns = Columns(np.arange(len(atoms)), len(atoms))
    together = pursuit_weights(vectors, atoms, columns, num_atoms=4).toarray()
    alone = np.concatenate([pursuit_weights(one[None], atoms, columns, num_atoms=4).toarray() for one in vectors[::100]])
    np.testing.assert_array_equal(together[::100], alone)
    monkeypatch.setattr(native, "load", lambda source: None)
    np.testing.assert_allclose(pursuit_weights(vectors[::100], atoms, columns, num_atoms=4).toarray(), alone, atol=1e-5)


def test_no_torch_is_loaded_for_it() -> None:
    """Half of the time and memory of a pursuit for few tokens would go into loading it."""
    code = "import sys, numpy; from conversion.embeddings.methods.matching_pursuit import Columns, pursuit_weights"
    code += "; pursuit_weights(numpy.eye(4), numpy.eye(4), Columns(numpy.arange(4), 4), num_atoms=2); sys.exit('torch' in sys.modules)"
    if native.load(SOURCE) is None or torch.cuda.is_available():
        pytest.skip("torch does it here")
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
