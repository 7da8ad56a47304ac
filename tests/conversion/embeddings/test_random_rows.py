"""Drawn rows and the statistics that they follow: the compiled loop beside numpy, bit for bit, and what neither may depend on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from common import short_work
from conversion.embeddings.methods import random_rows
from conversion.embeddings.methods.random_rows import RowStatistics, row_statistics
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.numbers import rounded_to
from conversion.formats.safetensors_file import read_safetensors, write_safetensors

needs_compiler = pytest.mark.skipif(random_rows._library() is None, reason="no C compiler")


def statistics(size: int) -> RowStatistics:
    rng = np.random.default_rng(0)
    return RowStatistics(rng.normal(size=size), rng.random(size))


def drawn(size: int, keys: int = 50) -> np.ndarray:
    return random_rows.random_rows([f"token {i}" for i in range(keys)], statistics(size), seed=3, layer="input")


@needs_compiler
@pytest.mark.parametrize("size", [1, 15, 16, 17, 511, 513, 4099])
def test_compiled_draws_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    compiled = drawn(size)
    monkeypatch.setattr(random_rows, "_library", lambda: None)
    np.testing.assert_array_equal(compiled.view(np.uint32), drawn(size).view(np.uint32))


@needs_compiler
def test_ten_million_draws_meet_every_strip_and_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = RowStatistics(np.zeros(10_000), np.ones(10_000))
    keys = [str(i) for i in range(1000)]
    compiled = random_rows.random_rows(keys, unit, seed=1, layer="x")
    monkeypatch.setattr(random_rows, "_library", lambda: None)
    by_numpy = random_rows.random_rows(keys, unit, seed=1, layer="x")
    assert (np.abs(by_numpy) > random_rows._TAIL).sum() > 1000
    np.testing.assert_array_equal(compiled.view(np.uint32), by_numpy.view(np.uint32))


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_compiler), False])
def test_threads_change_neither_draws_nor_statistics(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(random_rows, "_library", lambda: None)
    monkeypatch.setattr(random_rows, "_BLOCK_ROWS", 7)
    matrix = LazyTensor("m", (50, 33), "float32", lambda: rounded_to(drawn(33), "float32"))
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(short_work, "num_threads", lambda threads=threads: threads)
        monkeypatch.setattr(random_rows, "num_threads", lambda threads=threads: threads)
        found.append((drawn(33), row_statistics(matrix, np.arange(50)).mean, row_statistics(matrix, np.arange(50)).deviation))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@needs_compiler
@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16", "float16"])
def test_statistics_of_the_compiled_loop_are_those_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype_name: str) -> None:
    """Of a file's rows, padding left out, in parts and whole."""
    bits = rounded_to(drawn(130, keys=9000), dtype_name)
    write_safetensors(tmp_path / "rows.safetensors", [LazyTensor("m", bits.shape, dtype_name, lambda: bits)])
    (of_file,) = read_safetensors(tmp_path / "rows.safetensors")
    real = np.flatnonzero(np.arange(9000) % 10 != 3)
    compiled = [row_statistics(LazyTensor("m", bits.shape, dtype_name, lambda: bits), real), row_statistics(of_file, real)]
    monkeypatch.setattr(random_rows, "_library", lambda: None)
    by_numpy = [row_statistics(LazyTensor("m", bits.shape, dtype_name, lambda: bits), real), row_statistics(of_file, real)]
    for one, other in zip(compiled, by_numpy, strict=True):
        np.testing.assert_array_equal(one.mean, other.mean)
        np.testing.assert_array_equal(one.deviation, other.deviation)
    np.testing.assert_allclose(compiled[0].mean, compiled[1].mean, rtol=1e-12)  # sums of other parts


def test_pages_of_a_mapped_matrix_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = []
    monkeypatch.setattr(random_rows, "release_pages", given_back.append)
    monkeypatch.setattr(random_rows, "_BLOCK_ROWS", 8)
    monkeypatch.setattr(random_rows, "num_threads", lambda: 2)
    bits = rounded_to(drawn(5), "float32")
    row_statistics(LazyTensor("m", bits.shape, "float32", lambda: bits), np.arange(50))
    assert len(given_back) == 50 // 16 and all(block is bits for block in given_back)
