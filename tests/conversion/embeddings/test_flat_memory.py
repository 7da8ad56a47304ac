"""What a transfer holds does not grow with the vectors that it looks at, nor with the weights that it finds."""

from __future__ import annotations

import platform
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from conversion.embeddings.methods.matching_pursuit import pursuit_weights
from conversion.embeddings.spaces.sparse_weights import Columns, softmax_weights, sparsemax_weights
from conversion.embeddings.spaces.stored_rows import StoredRows
from conversion.embeddings.spaces.token_vectors import TokenVectors, unit_rows
from conversion.formats.mapped_pages import release_pages

pytestmark = pytest.mark.usefixtures("one_thread")

_HELD_BYTES = 64  # for a row: where its weights begin, the ids of its block, and how long it is
_WEIGHTS: dict[str, Callable[[np.ndarray, np.ndarray, Columns], sparse.csr_matrix]] = {
    "sparsemax": sparsemax_weights,
    "softmax": lambda new, anchors, columns: softmax_weights(new, anchors, columns, num_neighbors=50, temperature=0.1),
    "pursuit": lambda new, anchors, columns: pursuit_weights(new, anchors, columns, num_atoms=32),
}


def _mapped_file(path: Path, num_rows: int, size: int = 256) -> np.ndarray:
    np.save(path, np.random.default_rng(0).standard_normal((num_rows, size), dtype=np.float32))
    return np.load(path, mmap_mode="r")


def _mapped_kib() -> int:
    """Pages of files that this process has in memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssFile"].split()[0])


@pytest.mark.skipif(platform.system() != "Linux", reason="/proc says how many pages there are")
def test_rows_that_were_read_do_not_stay_in_memory(tmp_path: Path) -> None:
    table = _mapped_file(tmp_path / "vectors.npy", 1 << 16)  # 64 MiB
    rows = TokenVectors(table, np.arange(len(table))).rows(np.arange(len(table)))
    before = _mapped_kib()
    for start in range(0, len(rows), 4096):
        rows[start : start + 4096]
    assert _mapped_kib() - before < 8 << 10
    np.testing.assert_array_equal(rows[:100], np.load(tmp_path / "vectors.npy")[:100])


def test_memory_that_is_no_file_keeps_its_values() -> None:
    values = np.arange(1 << 16)
    release_pages(values[10:])
    assert values.sum() == (1 << 15) * ((1 << 16) - 1)


@pytest.mark.parametrize("name", _WEIGHTS)
def test_weights_of_more_tokens_take_no_more_memory(name: str) -> None:
    generator = np.random.default_rng(0)
    anchors = unit_rows(generator.standard_normal((400, 64)) + 3)  # all alike, so that sparsemax gives many of them a weight
    columns = Columns(np.arange(len(anchors)), len(anchors))
    held = []
    for num in (1000, 4000):
        new = unit_rows(generator.standard_normal((num, 64)) + 3)
        tracemalloc.start()
        weights = _WEIGHTS[name](new, anchors, columns)
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert weights.nnz > 20 * num
    assert held[1] - held[0] < 3000 * _HELD_BYTES


def test_rows_come_from_the_file_as_they_were(tmp_path: Path) -> None:
    blocks = [sparse.random(num, 50, density=0.2, format="csr", random_state=num) for num in (3, 1, 40)]
    rows = StoredRows(50)
    for block in blocks:
        rows.append(block)
    found = rows.matrix()
    np.testing.assert_array_equal(found.toarray(), sparse.vstack(blocks).toarray())
    assert StoredRows(50).matrix().shape == (0, 50)
