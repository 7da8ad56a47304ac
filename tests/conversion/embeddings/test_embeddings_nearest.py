"""The nearest anchors by way of products of 8 bits are those of all pairs."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from common import native
from conversion.embeddings.spaces import nearest
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


def _library() -> ctypes.CDLL:
    library = native.load(nearest.SOURCE)
    if library is None:
        pytest.skip("no C compiler")
    return library


def _of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a compiler."""
    monkeypatch.setattr(native, "load", lambda source: None)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5])
def test_compiled_loop_finds_what_all_pairs_find(monkeypatch: pytest.MonkeyPatch, name: str, noise: float) -> None:
    new, anchors = space(600, noise=noise, seed=1), space(2000, noise=noise, seed=2)
    found = WEIGHTS[name](new, anchors)
    _of_all_pairs(monkeypatch)
    monkeypatch.setattr(nearest, "_BLOCK_VALUES", 64 * len(anchors))
    # Both are float32 cosines, summed in another order; a temperature of 0.1 makes ten times as much of the difference.
    np.testing.assert_allclose(found.toarray(), WEIGHTS[name](new, anchors).toarray(), atol=1e-5)


@pytest.mark.parametrize(
    ("num_anchors", "size", "width"),
    [(1, 8, 1), (33, 5, 33), (50, 17, 50), (2000, 40, 65), (3000, 48, 41), (3000, 300, 1), (5000, 64, 100)],
)
def test_largest_cosines_are_those_of_float64(num_anchors: int, size: int, width: int) -> None:
    """Among them sizes that are padded, anchors that are there twice, cosines below 0, and a dimension that is large, which makes numbers of 8 bits coarse."""
    generator = np.random.default_rng(0)
    anchors, queries = (generator.standard_normal((num, size)) for num in (num_anchors, 100))
    anchors[:, 0] *= 20
    anchors[num_anchors // 2 : num_anchors // 2 * 2] = anchors[: num_anchors // 2]
    largest = nearest._Compiled(_library(), anchors)
    unit = unit_rows(queries)
    cosines, columns = largest(unit, width)
    all_pairs = unit.astype(np.float64) @ unit_rows(anchors).astype(np.float64).T
    np.testing.assert_allclose(cosines, -np.sort(-all_pairs, axis=1)[:, :width], atol=1e-6)
    np.testing.assert_allclose(cosines, np.take_along_axis(all_pairs, columns.astype(np.int64), axis=1), atol=1e-6)
    assert all(len(set(row)) == width for row in columns.tolist())
    if width < num_anchors // 2:
        assert (columns[:, 0] < num_anchors // 2).all(), "of equals the first"


@pytest.mark.some(1)
@pytest.mark.parametrize("processor", ["haswell", "x86-64"])
def test_older_processors_find_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processor: str) -> None:
    """With AVX2 and without; what this one has beyond that is used in all other tests."""
    if platform.machine() != "x86_64" or (processor == "haswell" and "avx2" not in Path("/proc/cpuinfo").read_text().split()):
        pytest.skip(f"this processor cannot do what {processor} does")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "_FLAGS", tuple(flag.replace("native", processor) for flag in native._FLAGS))
    library = native.load.__wrapped__(nearest.SOURCE)
    if library is None:
        pytest.skip("no C compiler")
    anchors, queries = space(2000, noise=0.5, seed=1), unit_rows(space(100, noise=0.5, seed=2))
    cosines, columns = nearest._Compiled(library, anchors)(queries, 65)
    all_pairs = queries @ unit_rows(anchors).T
    np.testing.assert_allclose(cosines, -np.sort(-all_pairs, axis=1)[:, :65], atol=1e-6)
    np.testing.assert_allclose(cosines, np.take_along_axis(all_pairs, columns.astype(np.int64), axis=1), atol=1e-6)


def test_few_pairs_are_multiplied_again() -> None:
    """What makes it fast: of rows that are spoilt where the loop need not look, none is found."""
    generator = np.random.default_rng(0)
    anchors, queries = (generator.standard_normal((num, 256)) for num in (20_000, 10))
    largest = nearest._Compiled(_library(), anchors)
    unit = unit_rows(queries)
    expected, columns = largest(unit, 10)
    all_pairs = unit @ unit_rows(anchors).T
    far = np.flatnonzero((all_pairs < expected[:, -1:] - 0.05).all(axis=0))
    assert len(far) > 15_000
    largest.table.rows[far] = 1.0
    found, again = largest(unit, 10)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(again, columns)


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


@pytest.mark.parametrize("kind", ["sparsemax", "softmax"])
def test_neighbours_that_8_bits_cannot_tell_apart(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    generator = np.random.default_rng(0)
    anchors = generator.standard_normal((4000, 48))
    anchors[2000:] = anchors[:2000] + 0.003 * generator.standard_normal((2000, 48))
    new = anchors[:300] + 0.6 * generator.standard_normal((300, 48))
    temperature = {"temperature": 0.05}

    def weights() -> np.ndarray:
        return (
            sparsemax_weights(new, anchors, each(anchors), **temperature)
            if kind == "sparsemax"
            else softmax_weights(new, anchors, each(anchors), num_neighbors=10, **temperature)
        ).toarray()

    found = weights()
    _of_all_pairs(monkeypatch)
    np.testing.assert_allclose(found, weights(), atol=2e-5)
