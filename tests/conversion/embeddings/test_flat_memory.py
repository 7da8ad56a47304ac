"""What a transfer holds does not grow with the vectors that it looks at, nor with the weights that it finds."""

from __future__ import annotations

import platform
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from conversion.embeddings.methods import row_plan
from conversion.embeddings.methods.matching_pursuit import pursuit_weights
from conversion.embeddings.methods.row_plan import Origin, RowPlan, row_blocks
from conversion.embeddings.spaces import helper_model, stored_rows
from conversion.embeddings.spaces.helper_model import HelperModel
from conversion.embeddings.spaces.sparse_weights import Columns, softmax_weights, sparsemax_weights
from conversion.embeddings.spaces.stored_rows import StoredRows
from conversion.embeddings.spaces.token_vectors import TokenVectors, unit_rows
from conversion.embeddings.vocabularies.vocabulary import Vocabulary
from conversion.formats.lazy_tensor import LazyTensor, read_span, release_pages
from tests.conversion.embedding_fixtures import byte_level, demo_text, opt_config, opt_tensors, save_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

_HELD_BYTES = 64  # for a row: where its weights begin, the ids of its block, and how long it is
_WEIGHTS: dict[str, Callable[[np.ndarray, np.ndarray, Columns], sparse.csr_matrix]] = {
    "sparsemax": sparsemax_weights,
    "softmax": lambda new, anchors, columns: softmax_weights(new, anchors, columns, num_neighbors=50, temperature=0.1),
    "pursuit": lambda new, anchors, columns: pursuit_weights(new, anchors, columns, num_atoms=32),
}


def _mapped_kib(kind: str = "RssFile") -> int:
    """Pages of files that this process has in memory; with `RssAnon` what is not a file."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[kind].split()[0])


@pytest.mark.skipif(platform.system() != "Linux", reason="/proc says how many pages there are")
@pytest.mark.parametrize("by", ["numpy", "a checkpoint"])
def test_vectors_that_were_read_do_not_stay_in_memory(tmp_path: Path, by: str) -> None:
    values = np.random.default_rng(0).standard_normal((1 << 16, 256), dtype=np.float32)  # 64 MiB
    np.save(tmp_path / "vectors.npy", values)
    table = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    if by == "a checkpoint":
        table = read_span(tmp_path / "vectors.npy", table.offset, values.shape, "float32").view(np.float32)
    rows = TokenVectors(table, np.arange(len(table))).rows(np.arange(len(table)))
    before = _mapped_kib()
    for start in range(0, len(rows), 4096):
        np.testing.assert_array_equal(rows[start : start + 4096], values[start : start + 4096])
    assert _mapped_kib() - before < 8 << 10


@pytest.mark.long
@pytest.mark.skipif(platform.system() != "Linux", reason="/proc says how many pages there are")
def test_weights_that_were_read_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_plan, "_BLOCK_VALUES", 1 << 15)  # rows of 8 values: 20 blocks
    weights = StoredRows(1000)
    for _ in range(16):
        weights.append(sparse.random(5000, 1000, density=0.06, format="csr", random_state=0))  # 3.4 MiB
    matrix = LazyTensor.of("input", torch.zeros(1000, 8))
    rows = weights.matrix()
    plan = RowPlan(np.full(rows.shape[0], Origin.COMBINED, dtype=object), np.full(rows.shape[0], -1), rows)
    before = _mapped_kib()
    for _ in row_blocks(plan, matrix, keys=tuple, statistics=lambda: pytest.fail("nothing is drawn"), seed=0, layer="input"):
        assert _mapped_kib() - before < 4 << 10


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


def test_no_room_for_weights_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "TemporaryFile", lambda: open("/dev/full", "wb"))  # noqa: SIM115 (goes with the rows)
    with pytest.raises(ValueError, match=r".* is too full for the weights of new tokens, 12 bytes each; .* TMPDIR"):
        StoredRows(50).append(sparse.random(3, 50, density=0.2, format="csr"))


@pytest.mark.skipif(platform.system() != "Linux", reason="/proc says how many pages there are")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_helpers_rows_are_read_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Whatever their dtype, and whether they are looked up or added up: else they would grow with the vocabulary."""
    monkeypatch.setattr(helper_model, "_BLOCK_ROWS", 100)
    tokenizer = byte_level(demo_text("sl"), num_tokens=2000)
    config = opt_config(len(tokenizer), hidden_size=4096, num_hidden_layers=0)
    matrix = opt_tensors(config, dtype=dtype)["model.decoder.embed_tokens.weight"]
    matrix[7] = 0
    folder = save_checkpoint(tmp_path / "helper", config, {"model.decoder.embed_tokens.weight": matrix}, tokenizer)
    vocabulary = Vocabulary.of(tokenizer)
    before = _mapped_kib("RssAnon")
    helper = HelperModel.open(folder)
    looked_up = helper.token_vectors(vocabulary)
    added_up = helper.piece_means(vocabulary) if dtype == torch.float32 else looked_up  # what is summed has to be float32
    assert _mapped_kib("RssAnon") - before < 16 << 10, "half of what the rows take in float32"
    ids = np.flatnonzero(looked_up.is_known)
    assert 7 not in ids and len(ids) > 1900
    np.testing.assert_array_equal(looked_up.rows(ids)[:], matrix[torch.from_numpy(ids)].float().numpy())
    np.testing.assert_array_equal(added_up.rows(ids)[:], looked_up.rows(ids)[:])  # each token is its own only piece
