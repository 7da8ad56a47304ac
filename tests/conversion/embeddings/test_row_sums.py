"""Copies and weighted sums of rows, beside numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from conversion.embeddings.methods.row_plan import row_filler
from conversion.formats.lazy_tensor import bits_of

_NUM_ROWS, _NUM_SOURCE = 61, 40
_LEFT = 7.0  # in rows that nobody writes


@pytest.mark.parametrize("size", [1, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rows_are_copies_or_sums(size: int, dtype: torch.dtype) -> None:
    source_ids, weights, matrix = _case(size, dtype)
    rows = _rows(source_ids, weights, matrix)
    is_copy, has_weights = source_ids >= 0, np.diff(weights.indptr) > 0
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16}[matrix.element_size()]
    assert torch.equal(rows[is_copy].view(bits), matrix[source_ids[is_copy]].view(bits)), (
        "zeros keep their sign, and what is not a number its bits"
    )
    assert (rows[~is_copy & ~has_weights] == _LEFT).all()
    exact = weights.astype(np.float32) @ matrix.double().numpy()
    scale = torch.finfo(dtype).eps if dtype in (torch.bfloat16, torch.float16) else 1e-6
    np.testing.assert_allclose(rows.double().numpy()[has_weights], exact[has_weights], rtol=scale, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_blocks_do_not_change_a_bit(dtype: torch.dtype) -> None:
    source_ids, weights, matrix = _case(300, dtype)
    whole = _rows(source_ids, weights, matrix)
    for block_rows in (1, 7):
        assert torch.equal(_rows(source_ids, weights, matrix, block_rows).view(torch.int16), whole.view(torch.int16))


def test_a_sum_is_rounded_once_and_to_even() -> None:
    """1 + 2^-8 lies between two numbers of bfloat16, and 1 + 2^-8 + 2^-12 above the middle, of which a sum that is rounded as it grows knows nothing."""
    matrix = torch.tensor([[1.0] * 17, [2**-8] * 17, [2**-12] * 17, [3.0] * 17]).to(torch.bfloat16)
    weights = sparse.csr_matrix(np.array([[1.0, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 1]]))
    rows = torch.empty(3, 17, dtype=torch.bfloat16)
    row_filler(np.full(3, -1), weights, bits_of(matrix), "bfloat16")(0, bits_of(rows))
    for row, expected in zip(rows, (1.0, 1 + 2**-7, 3.0)):
        assert row.tolist() == [expected] * 17


def _case(size: int, dtype: torch.dtype) -> tuple[np.ndarray, sparse.csr_matrix, torch.Tensor]:
    """Of the rows a third are copies, a third sums, and the others neither."""
    generator = np.random.default_rng(size)
    matrix = torch.from_numpy(generator.standard_normal((_NUM_SOURCE, size))).to(dtype)
    special = torch.tensor([-0.0, float("inf"), float("nan")]).to(dtype)
    matrix[:3] = special[:, None]
    source_ids = np.full(_NUM_ROWS, -1)
    source_ids[::3] = np.arange(len(source_ids[::3]))
    dense = np.zeros((_NUM_ROWS, _NUM_SOURCE))
    dense[1::3, 3:] = generator.standard_normal((len(dense[1::3]), _NUM_SOURCE - 3)) * (
        generator.random((len(dense[1::3]), _NUM_SOURCE - 3)) < 0.4
    )
    return source_ids, sparse.csr_matrix(dense), matrix


def _rows(source_ids: np.ndarray, weights: sparse.csr_matrix, matrix: torch.Tensor, block_rows: int = _NUM_ROWS) -> torch.Tensor:
    fill = row_filler(source_ids, weights, bits_of(matrix), str(matrix.dtype).removeprefix("torch."))
    rows = torch.full((len(source_ids), matrix.shape[1]), _LEFT, dtype=matrix.dtype)
    for start in range(0, len(rows), block_rows):
        fill(start, bits_of(rows[start : start + block_rows]))
    return rows
