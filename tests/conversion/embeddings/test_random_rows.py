"""Drawn rows and the statistics that they follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conversion.embeddings.methods import random_rows
from conversion.embeddings.methods.random_rows import RowStatistics, row_statistics
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.numbers import numbers_of, rounded_to
from conversion.formats.safetensors_file import read_safetensors, write_safetensors


def drawn(size: int, keys: int = 50) -> np.ndarray:
    rng = np.random.default_rng(0)
    statistics = RowStatistics(rng.normal(size=size), rng.random(size))
    return random_rows.random_rows([f"token {i}" for i in range(keys)], statistics, seed=3, layer="input")


def test_draws_are_the_same_in_every_release() -> None:
    """Who trains on from a transfer of an older release, or repeats it, has its rows."""
    mean, deviation = np.float32([0, 2, -1]), np.float32([1, 3, 10])
    rows = random_rows.random_rows(["hiša"], RowStatistics(mean, deviation), seed=1, layer="input")
    np.testing.assert_array_equal(rows, np.float32([[0.10012620687484741, 0.9258777499198914, -0.6005232930183411]]) * deviation + mean)


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "float16"])
def test_statistics_are_those_of_numpy(tmp_path: Path, dtype_name: str) -> None:
    """Of a file's rows, padding left out, in parts and whole."""
    bits = rounded_to(drawn(130, keys=9000), dtype_name)
    in_memory = LazyTensor("m", bits.shape, dtype_name, lambda: bits)
    write_safetensors(tmp_path / "rows.safetensors", [in_memory])
    (of_file,) = read_safetensors(tmp_path / "rows.safetensors")
    real = np.flatnonzero(np.arange(9000) % 10 != 3)
    values = numbers_of(bits, dtype_name).astype(np.float64)[real]
    for matrix in (in_memory, of_file):
        found = row_statistics(matrix, real)
        np.testing.assert_allclose(found.mean, values.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(found.deviation, values.std(axis=0), rtol=1e-9)
        whole = row_statistics(matrix, real, over="matrix")
        np.testing.assert_allclose(whole.mean, np.full(130, values.mean()), rtol=1e-12)
        np.testing.assert_allclose(whole.deviation, np.full(130, values.std()), rtol=1e-9)


def test_pages_of_a_mapped_matrix_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[np.ndarray] = []
    monkeypatch.setattr(random_rows, "release_pages", given_back.append)
    monkeypatch.setattr(random_rows, "_BLOCK_ROWS", 8)
    bits = rounded_to(drawn(5), "float32")
    row_statistics(LazyTensor("m", bits.shape, "float32", lambda: bits), np.arange(50))
    assert len(given_back) == 7 and all(block is bits for block in given_back)
