"""The compiled pursuit makes the choices of the plain one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common import native
from conversion.embeddings.methods import matching_pursuit
from conversion.embeddings.methods.matching_pursuit import SOURCE, _BriefPursuit, _GramPursuit, _pursue, cheapest_way, pursuit_weights


def _unit(values: np.ndarray) -> torch.Tensor:
    rows = torch.from_numpy(values.astype(np.float32))
    return rows / rows.norm(dim=1, keepdim=True)


def _case(kind: str, *, num_atoms: int, size: int, num_vectors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Atoms and vectors of one distribution: without structure, of few dimensions and noise, or in tight clusters."""
    generator = np.random.default_rng(sum(map(ord, kind)))
    shape = (num_atoms + num_vectors, size)
    values = generator.standard_normal(shape)
    if kind == "few dimensions":
        values = generator.standard_normal((len(values), 8)) @ generator.standard_normal((8, size)) + 0.5 * values
    elif kind == "clusters":
        values = generator.standard_normal((20, size))[generator.integers(0, 20, len(values))] + 0.2 * values
    rows = _unit(values)
    return rows[:num_atoms], rows[num_atoms:]


@pytest.fixture
def library() -> object:
    library = native.load(SOURCE)
    if library is None:
        pytest.skip("no C compiler: the plain pursuit is used everywhere")
    return library


@pytest.mark.parametrize("kind", ["no structure", "few dimensions", "clusters"])
@pytest.mark.parametrize(("num_atoms", "size", "steps"), [(2000, 100, 30), (700, 48, 20), (90, 33, 12), (5, 4, 4)])
@pytest.mark.parametrize("long_first", [False, True])
@pytest.mark.parametrize("way", [_GramPursuit, _BriefPursuit])
def test_compiled_choices_are_the_plain_ones(
    library, way: type, kind: str, num_atoms: int, size: int, steps: int, long_first: bool
) -> None:
    atoms, vectors = _case(kind, num_atoms=num_atoms, size=size, num_vectors=40)
    lengths = torch.rand(num_atoms, generator=torch.Generator().manual_seed(0)) * 3 + 0.1
    preference = lengths if long_first else torch.ones(num_atoms)
    chosen, coefficients = way(library, atoms, steps, preference)(vectors)
    plain, plain_coefficients = _pursue(vectors, atoms, steps, preference)
    used = coefficients != 0
    assert torch.equal(used, plain_coefficients != 0)
    same = (torch.where(used, chosen, -1) == torch.where(used, plain, -1)).all(dim=1)
    assert same.float().mean() >= 0.95  # two atoms whose similarities differ by rounding only may change places
    torch.testing.assert_close(coefficients[same], plain_coefficients[same], atol=2e-4, rtol=1e-3)
    sums, plain_sums = (torch.einsum("vs,vsd->vd", c.float(), atoms[i]) for i, c in ((chosen, coefficients), (plain, plain_coefficients)))
    torch.testing.assert_close(sums, plain_sums, atol=0.05, rtol=0)


def test_most_vectors_need_no_plain_pursuit(library, monkeypatch: pytest.MonkeyPatch) -> None:
    atoms, vectors = _case("few dimensions", num_atoms=3000, size=128, num_vectors=60)
    pursuit = _GramPursuit(library, atoms, 24, torch.ones(len(atoms)))
    seen: list[int] = []
    plain = matching_pursuit._pursue
    monkeypatch.setattr(matching_pursuit, "_pursue", lambda rows, *rest: seen.append(len(rows)) or plain(rows, *rest))
    pursuit(vectors)
    assert sum(seen) <= 1


def test_what_16_bits_cannot_decide_is_done_the_plain_way(library) -> None:
    """So many atoms that nothing is left of a vector: the products become smaller than the rounding of the Gram matrix."""
    atoms, vectors = _case("few dimensions", num_atoms=1500, size=40, num_vectors=30)
    steps = 40
    chosen, coefficients = _GramPursuit(library, atoms, steps, torch.ones(len(atoms)))(vectors)
    sums = torch.einsum("vs,vsd->vd", coefficients.float(), atoms[chosen])
    torch.testing.assert_close(sums, vectors, atol=2e-3, rtol=0)


@pytest.mark.parametrize("kind", ["no structure", "few dimensions", "clusters"])
def test_both_compiled_ways_give_the_same_bits(library, kind: str) -> None:
    """So what is cheapest decides nothing but the time: a machine with other instructions makes the same rows."""
    atoms, vectors = _case(kind, num_atoms=1111, size=120, num_vectors=300)  # more than one block of the second way
    preference = torch.rand(len(atoms), generator=torch.Generator().manual_seed(0)) + 0.5
    gram, brief = (way(library, atoms, 16, preference)(vectors) for way in (_GramPursuit, _BriefPursuit))
    assert torch.equal(gram[0], brief[0]) and torch.equal(gram[1], brief[1])


def test_twins_and_exact_vectors_end_early(library) -> None:
    atoms, _ = _case("no structure", num_atoms=60, size=32, num_vectors=1)
    atoms = torch.cat([atoms, atoms[:20]])
    vectors = torch.stack([atoms[3], _unit((atoms[5] + 2 * atoms[40])[None].numpy())[0], torch.zeros(32)])
    chosen, coefficients = _BriefPursuit(library, atoms, 8, torch.ones(len(atoms)))(vectors)
    assert (coefficients != 0).sum(dim=1).tolist() == [1, 2, 0]
    torch.testing.assert_close(torch.einsum("vs,vsd->vd", coefficients.float(), atoms[chosen]), vectors, atol=1e-5, rtol=0)


def test_the_bound_of_products_in_bfloat16_holds() -> None:
    """What pursuit.c relies on: what both factors lose, float32 in a sum, and a share of 2^-8 for rounding the product."""
    atoms, vectors = _case("few dimensions", num_atoms=2000, size=576, num_vectors=64)
    products = (vectors.bfloat16() @ atoms.bfloat16().T).double()
    lost = (atoms - atoms.bfloat16().float()).norm(dim=1).max(), (vectors - vectors.bfloat16().float()).norm(dim=1)
    error = (lost[0] + 2.4e-7 * 576 + lost[1] * (1 + lost[0])).double()[:, None]
    off = (products - vectors.double() @ atoms.double().T).abs()
    assert (off <= 0.00392 * products.abs() + error).all()
    assert off.max() > 0.1 * error.max()  # no bound that says nothing


def test_few_vectors_need_no_gram_matrix_and_large_ones_are_not_made() -> None:
    def way(num_vectors: int, num_atoms: int, has_bfloat16: bool) -> str:
        return cheapest_way(num_vectors, num_atoms, 576, 64, has_bfloat16=has_bfloat16)

    assert [way(n, 20_000, True) for n in (512, 2_048, 32_000)] == ["brief", "brief", "gram"]
    assert [way(n, 20_000, False) for n in (64, 512, 32_000)] == ["plain", "gram", "gram"]
    assert way(51_190, 50_000, True) == "brief" and way(51_190, 50_000, False) == "plain"  # 5 GB
    generator = np.random.default_rng(0)
    atoms, vectors = generator.standard_normal((500, 16)), generator.standard_normal((3, 16))
    few = pursuit_weights(vectors, atoms, num_atoms=4).toarray()
    many = pursuit_weights(np.repeat(vectors, 50, axis=0), atoms, num_atoms=4).toarray()[::50]
    np.testing.assert_allclose(few, many, atol=1e-5)
