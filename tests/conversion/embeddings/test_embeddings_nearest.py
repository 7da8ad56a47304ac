"""Nearest anchors and their weights, in blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import sparse

from conversion.embeddings.spaces import sparse_weights
from conversion.embeddings.spaces.sparse_weights import Columns, softmax_weights, sparsemax_weights
from conversion.embeddings.spaces.token_vectors import unit_rows

pytestmark = pytest.mark.usefixtures("one_thread")


def each(anchors: np.ndarray) -> Columns:
    """A column for each anchor."""
    return Columns(np.arange(len(anchors)), len(anchors))


WEIGHTS: dict[str, Callable[[np.ndarray, np.ndarray], sparse.csr_matrix]] = {
    "sparsemax": lambda new, anchors: sparsemax_weights(new, anchors, each(anchors)),
    "cold sparsemax": lambda new, anchors: sparsemax_weights(new, anchors, each(anchors), temperature=0.1),
    "softmax": lambda new, anchors: softmax_weights(new, anchors, each(anchors), num_neighbors=10, temperature=0.1),
    "wide softmax": lambda new, anchors: softmax_weights(new, anchors, each(anchors), num_neighbors=100, temperature=0.1),
}


def space(num_rows: int, *, leading: int = 6, size: int = 40, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """Vectors that vary in a few directions and a little in all."""
    axes = np.random.default_rng(99).standard_normal((leading, size))
    generator = np.random.default_rng(seed)
    return generator.standard_normal((num_rows, leading)) @ axes + noise * generator.standard_normal((num_rows, size))


@pytest.mark.parametrize("name", WEIGHTS)
def test_blocks_do_not_change_the_weights(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    new, anchors = space(200, seed=1), space(2000, seed=2)
    found = WEIGHTS[name](new, anchors)
    monkeypatch.setattr(sparse_weights, "_BLOCK_VALUES", 7 * len(anchors))
    np.testing.assert_allclose(found.toarray(), WEIGHTS[name](new, anchors).toarray(), atol=1e-5)


@pytest.mark.parametrize(
    ("num_anchors", "size", "width"),
    [(1, 8, 1), (33, 5, 33), (50, 17, 50), (2000, 40, 65), (3000, 48, 41), (3000, 300, 1), (5000, 64, 100)],
)
def test_largest_cosines_are_those_of_float64(num_anchors: int, size: int, width: int) -> None:
    """Among them anchors that are there twice, cosines below 0, and a dimension that is large."""
    generator = np.random.default_rng(0)
    anchors, queries = (generator.standard_normal((num, size)) for num in (num_anchors, 100))
    anchors[:, 0] *= 20
    anchors[num_anchors // 2 : num_anchors // 2 * 2] = anchors[: num_anchors // 2]
    largest = sparse_weights._largest_cosines(anchors)
    unit = unit_rows(queries)
    cosines, columns = largest(unit, width)
    all_pairs = unit.astype(np.float64) @ unit_rows(anchors).astype(np.float64).T
    np.testing.assert_allclose(cosines, -np.sort(-all_pairs, axis=1)[:, :width], atol=1e-6)
    np.testing.assert_allclose(cosines, np.take_along_axis(all_pairs, columns.astype(np.int64), axis=1), atol=1e-6)
    assert all(len(set(row)) == width for row in columns.tolist())


def test_anchors_that_are_alike_are_all_found() -> None:
    """A support of hundreds: the search widens until nothing outside can matter."""
    generator = np.random.default_rng(0)
    anchors = np.ones((3000, 40)) + generator.standard_normal((3000, 40)) * 1e-2
    weights = sparsemax_weights(np.ones((3, 40)), anchors, each(anchors))
    assert np.diff(weights.indptr).min() > 1000
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-9)


def test_order_of_new_vectors_is_kept() -> None:
    """Vectors that need more anchors than others are done later, but stay where they were."""
    anchors = np.concatenate([space(1500, seed=1), np.ones((200, 40)) * 3 + 0.01 * space(200, seed=2)])
    new = space(40, seed=3)
    new[::7] = 1.0
    weights = sparsemax_weights(new, anchors, each(anchors))
    for i in range(len(new)):
        np.testing.assert_allclose(weights[i].toarray(), sparsemax_weights(new[i : i + 1], anchors, each(anchors)).toarray(), atol=1e-5)
    assert np.diff(weights.indptr)[::7].min() > 100 > np.median(np.diff(weights.indptr))
