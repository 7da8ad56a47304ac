"""The nearest anchors by way of few directions are those of all pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import sparse

from conversion.embeddings.spaces import nearest
from conversion.embeddings.spaces.nearest import unit_rows
from conversion.embeddings.spaces.sparse_weights import softmax_weights, sparsemax_weights

pytestmark = pytest.mark.usefixtures("one_thread")

WEIGHTS: dict[str, Callable[[np.ndarray, np.ndarray], sparse.csr_matrix]] = {
    "sparsemax": sparsemax_weights,
    "cold sparsemax": lambda new, anchors: sparsemax_weights(new, anchors, temperature=0.1),
    "softmax": lambda new, anchors: softmax_weights(new, anchors, num_neighbors=10, temperature=0.1),
    "wide softmax": lambda new, anchors: softmax_weights(new, anchors, num_neighbors=100, temperature=0.1),
}


def space(num_rows: int, *, leading: int = 6, size: int = 40, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """Vectors that vary in a few directions and a little in all."""
    axes = np.random.default_rng(99).standard_normal((leading, size))
    generator = np.random.default_rng(seed)
    return generator.standard_normal((num_rows, leading)) @ axes + noise * generator.standard_normal((num_rows, size))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("most_rest", [0.3, 0.02])
def test_few_directions_find_what_all_pairs_find(monkeypatch: pytest.MonkeyPatch, name: str, noise: float, most_rest: float) -> None:
    new, anchors = space(300, noise=noise, seed=1), space(2000, noise=noise, seed=2)
    expected = WEIGHTS[name](new, anchors)
    looked_at: list[tuple[int, int]] = []
    largest = nearest._Search.largest

    def watched(search: nearest._Search, queries: torch.Tensor, width: int, weigh: nearest.Weigh) -> object:
        assert search.rotation is not None or noise == 0.5
        looked_at.append((len(queries), width))
        return largest(search, queries, width, weigh)

    monkeypatch.setattr(nearest._Search, "largest", watched)
    monkeypatch.setattr(nearest, "_FEWEST_PAIRS", 1)
    monkeypatch.setattr(nearest, "_MOST_REST", most_rest)
    monkeypatch.setattr(nearest, "_BLOCK_VALUES", 64 * len(anchors))
    found = WEIGHTS[name](new, anchors)
    # Both are float32 cosines, summed in another order; a temperature of 0.1 makes ten times as much of the difference.
    np.testing.assert_allclose(found.toarray(), expected.toarray(), atol=1e-5)
    assert sum(num for num, width in looked_at if width == looked_at[0][1]) <= len(new)


def test_bounds_are_bounds() -> None:
    new, anchors = unit_rows(space(50, seed=1)), unit_rows(space(400, seed=2))
    rotation = torch.from_numpy(np.linalg.eigh(anchors.T @ anchors)[1][:, ::-1].copy())
    for num_leading in (1, 6, 12):
        one, other = (nearest._leading_and_rest(torch.from_numpy(rows), rotation, num_leading) for rows in (new, anchors))
        bounds = (one @ other.T).numpy()
        assert (bounds >= new @ anchors.T - 1e-6).all()
        least = bounds - 2 * one[:, -1:].numpy() * other[:, -1].numpy()
        assert (least <= new @ anchors.T + 1e-6).all()


def test_anchors_that_are_alike_are_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A support of hundreds: the search widens until nothing outside can matter."""
    monkeypatch.setattr(nearest, "_FEWEST_PAIRS", 1)
    generator = np.random.default_rng(0)
    anchors = np.ones((3000, 40)) + generator.standard_normal((3000, 40)) * 1e-2
    weights = sparsemax_weights(np.ones((3, 40)), anchors)
    assert np.diff(weights.indptr).min() > 1000
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-9)


def test_order_of_new_vectors_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that need more anchors than others are done later, but stay where they were."""
    monkeypatch.setattr(nearest, "_FEWEST_PAIRS", 1)
    anchors = np.concatenate([space(1500, seed=1), np.ones((200, 40)) * 3 + 0.01 * space(200, seed=2)])
    new = space(40, seed=3)
    new[::7] = 1.0
    weights = sparsemax_weights(new, anchors)
    for i in range(len(new)):
        np.testing.assert_allclose(weights[i].toarray(), sparsemax_weights(new[i : i + 1], anchors).toarray(), atol=1e-5)
    assert np.diff(weights.indptr)[::7].min() > 100 > np.median(np.diff(weights.indptr))


@pytest.mark.parametrize(("num_columns", "width"), [(20, 5), (640, 20), (655, 20), (2000, 1), (2000, 62), (2000, 63)])
def test_largest_of_groups_are_the_largest_of_all(num_columns: int, width: int) -> None:
    values = torch.randn(50, num_columns, generator=torch.Generator().manual_seed(0))
    values[:25] = values[:25].round(decimals=1)  # many equal values
    found, columns = nearest._largest(values, width)
    torch.testing.assert_close(found, values.topk(width, dim=1).values, rtol=0, atol=0)
    torch.testing.assert_close(values.gather(1, columns), found, rtol=0, atol=0)
    assert all(len(set(row)) == width for row in columns.tolist())


@pytest.mark.parametrize("kind", ["sparsemax", "softmax"])
def test_products_in_bfloat16_only_choose_whom_to_look_at(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A space without leading directions, where bounds come from bfloat16, and neighbours so close that it cannot tell them apart."""
    generator = np.random.default_rng(0)
    anchors = generator.standard_normal((4000, 48))
    anchors[2000:] = anchors[:2000] + 0.003 * generator.standard_normal((2000, 48))
    new = anchors[:300] + 0.6 * generator.standard_normal((300, 48))
    temperature = {"temperature": 0.05}

    def weights() -> np.ndarray:
        return (
            sparsemax_weights(new, anchors, **temperature)
            if kind == "sparsemax"
            else softmax_weights(new, anchors, num_neighbors=10, **temperature)
        ).toarray()

    plain = weights()  # so few pairs are computed
    monkeypatch.setattr(nearest, "_FEWEST_PAIRS", 1)
    monkeypatch.setattr(nearest, "has_bfloat16", lambda: True)
    assert nearest._Search.of(unit_rows(anchors), new, torch.device("cpu")).brief is not None
    np.testing.assert_allclose(weights(), plain, atol=2e-5)


def test_bounds_in_bfloat16_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "_FEWEST_PAIRS", 1)
    monkeypatch.setattr(nearest, "has_bfloat16", lambda: True)
    generator = np.random.default_rng(0)
    anchors, new = (unit_rows(generator.standard_normal((num, 48))) for num in (3000, 200))
    search = nearest._Search.of(anchors, new, torch.device("cpu"))
    bounds, columns, uncertainty = search._largest_bounds(torch.from_numpy(new), 40)
    cosines = torch.from_numpy(new @ anchors.T).gather(1, columns)
    assert (cosines <= bounds).all() and (cosines >= bounds - uncertainty).all()
    assert uncertainty.max() < 0.02  # no bound that says nothing
