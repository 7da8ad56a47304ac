"""The origin of each new row, and the rows of any token matrix computed from that.

A method decides once, from tokens alone; the decision then serves input embeddings, output layer and bias alike:
`rows = W @ M` with a sparse W, except that copies are taken bit for bit and that some rows are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from conversion.embeddings.methods.random_rows import RowStatistics, random_rows
from conversion.embeddings.spaces.stored_rows import release_rows
from conversion.formats.lazy_tensor import Bits, FillRows, LazyTensor, bits_dtype, bits_of
from conversion.formats.numbers import Numbers, numbers_of, rounded_to

if TYPE_CHECKING:
    from torch import Tensor

Keys = Callable[[], Sequence[str]]

INPUT_LAYER = "input"

_BLOCK_VALUES = 1 << 21  # of rows that are made at once: 8 MiB in float32; of larger pieces the allocator keeps hundreds of MiB


class Origin(StrEnum):
    """Where a row comes from."""

    COPIED = "copied"  # the source has the same token
    COPIED_CASE = "copied: case"  # it has the same but for capitals
    COPIED_SPACE = "copied: space"  # it has the same but for the space before it
    COPIED_CASE_SPACE = "copied: both"  # it has the same but for capitals and the space
    SPECIAL = "special"  # the source has a special token of the same role
    COMBINED = "combined"  # the method's weighted sum of source rows
    MAPPED = "mapped"  # by a linear map that the method has fitted
    LEARNED = "learned"  # by the model itself, from a text
    RANDOM = "random"  # drawn because the method draws
    FALLBACK_MEAN = "fallback: mean"  # the method has nothing for this token: mean of its source pieces
    FALLBACK_RANDOM = "fallback: random"  # and the source has no pieces for it either


@dataclass(frozen=True)
class MappedRows:
    """Rows that are not a sparse sum of a matrix's: by a linear map that is fitted to it, or learned.

    Attributes:
        ids: target ids of the rows, in ascending order.
        fit: from a source matrix (num_rows, size) and whether it belongs to the output layer, a function that makes rows: from
            places in `ids` (num_places,) to (num_places, size) float32.
        origin: how these rows are called.
    """

    ids: np.ndarray
    fit: Callable[[LazyTensor, bool], Callable[[np.ndarray], Numbers]]
    origin: Origin = Origin.MAPPED


@dataclass(frozen=True)
class RowPlan:
    """How to make each row of the target.

    Attributes:
        origins: (num_target_tokens,) of `Origin` values.
        source_ids: (num_target_tokens,) int64, the row to copy; -1 where none is.
        weights: (num_target_tokens, num_source_tokens) float64, without entries in the rows that have another origin.
        mapped: rows that are neither copied, drawn nor sparse sums.
        facts: what the method has to say of its work, for manifest and report.
        warnings: sentences about the rows that need a look.
    """

    origins: np.ndarray
    source_ids: np.ndarray
    weights: sparse.csr_matrix
    mapped: MappedRows | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        is_drawn = np.isin(self.origins, (Origin.RANDOM, Origin.FALLBACK_RANDOM))
        has_weights = np.diff(self.weights.indptr) > 0
        is_mapped = np.zeros(len(self.origins), dtype=bool)
        if self.mapped is not None:
            is_mapped[self.mapped.ids] = True
        assert np.all((self.source_ids >= 0).astype(int) + has_weights + is_drawn + is_mapped == 1), "each row has exactly one origin"

    @property
    def is_drawn(self) -> np.ndarray:
        """(num_target_tokens,) bool: the row is random."""
        return np.isin(self.origins, (Origin.RANDOM, Origin.FALLBACK_RANDOM))

    def counts(self) -> dict[str, int]:
        """Number of rows by origin; origins that do not occur are left out."""
        return {str(origin): count for origin in Origin if (count := int((self.origins == origin).sum()))}


def make_rows(plan: RowPlan, matrix: Tensor, *, keys: Keys, statistics: Callable[[], RowStatistics], seed: int, layer: str) -> Tensor:
    """The target's rows of one matrix, (num_target_tokens, size), in its dtype; arguments as of `row_blocks`."""
    import torch

    blocks = row_blocks(plan, LazyTensor.of(layer, matrix), keys=keys, statistics=statistics, seed=seed, layer=layer)
    return torch.from_numpy(np.concatenate(list(blocks))).view(matrix.dtype)


def target_matrix(
    plan: RowPlan, matrix: LazyTensor, *, keys: Keys, statistics: Callable[[], RowStatistics], seed: int, layer: str
) -> LazyTensor:
    """The target's rows of one matrix under its name, made when they are written; arguments as of `row_maker`."""
    blocks = partial(row_blocks, plan, matrix, keys=keys, statistics=statistics, seed=seed, layer=layer)
    made = LazyTensor.of_bits_blocks(matrix.name, (len(plan.origins), matrix.shape[1]), matrix.dtype_name, blocks)
    # Mapped rows are products of matrices, whose last bits depend on how many are made at once.
    return made if plan.mapped is not None else replace(made, filler=partial(row_maker, *blocks.args, **blocks.keywords))


def row_blocks(
    plan: RowPlan, matrix: LazyTensor, *, keys: Keys, statistics: Callable[[], RowStatistics], seed: int, layer: str
) -> Iterator[Bits]:
    """The target's rows of one matrix from first to last, some at a time: who writes them need not hold them all.

    Arguments as of `row_maker`.

    Yields:
        (num_rows, size), bits of the matrix's dtype
    """
    fill = row_maker(plan, matrix, keys=keys, statistics=statistics, seed=seed, layer=layer)
    block_rows = max(1, _BLOCK_VALUES // matrix.shape[1])
    for start in range(0, len(plan.origins), block_rows):
        rows = np.empty((min(block_rows, len(plan.origins) - start), matrix.shape[1]), bits_dtype(matrix.dtype_name))
        fill(start, rows)
        yield rows


def row_maker(plan: RowPlan, matrix: LazyTensor, *, keys: Keys, statistics: Callable[[], RowStatistics], seed: int, layer: str) -> FillRows:
    """What writes the target's rows of one matrix.

    Copies are bit for bit; sums are accumulated in float32 and rounded once to the matrix's dtype.

    Args:
        matrix: (at least num_source_tokens, size), any floating dtype; a bias is (num_source_tokens, 1).
        keys: gives `Vocabulary.keys` of the target, which decide the drawn rows together with seed and layer.
        statistics: of the matrix; both are called only where rows are drawn.
        layer: name of the matrix, `INPUT_LAYER` for the input embeddings.
    """
    is_drawn = plan.is_drawn
    drawn_from, names = (statistics(), keys()) if is_drawn.any() else (None, ())
    bits = matrix.bits()
    fill = row_filler(plan.source_ids, plan.weights, bits, matrix.dtype_name)
    # Of the bits at hand: to read them again would map the file's pages a second time.
    mapping = plan.mapped.fit(replace(matrix, bits=lambda: bits), layer != INPUT_LAYER) if plan.mapped is not None else None

    def make(start: int, rows: Bits) -> None:
        fill(start, rows)
        release_rows(plan.weights)
        if plan.mapped is not None and mapping is not None:
            places = np.arange(*np.searchsorted(plan.mapped.ids, (start, start + len(rows))))
            rows[plan.mapped.ids[places] - start] = rounded_to(mapping(places), matrix.dtype_name)
        if drawn_from is not None and len(drawn := np.flatnonzero(is_drawn[start : start + len(rows)])):
            made = random_rows([names[start + i] for i in drawn], drawn_from, seed=seed, layer=layer)
            rows[drawn] = rounded_to(made, matrix.dtype_name)

    return make


def drawn_blocks(keys: Sequence[str], statistics: RowStatistics, dtype_name: str, *, seed: int, layer: str) -> Iterator[Bits]:
    """Random rows of all tokens as `random_rows` draws them, some at a time: bits of (some_rows, size), rounded to a dtype."""
    block_rows = max(1, _BLOCK_VALUES // len(statistics.mean))
    for start in range(0, len(keys), block_rows):
        yield rounded_to(random_rows(keys[start : start + block_rows], statistics, seed=seed, layer=layer), dtype_name)


def weighted_sums(weights: sparse.csr_matrix, matrix: Tensor) -> Tensor:
    """`weights @ matrix` in float32; each row is summed in the order of its columns, so threads do not change it.

    Args:
        weights: (num_rows, num_source_tokens)
        matrix: (at least num_source_tokens, size)

    Returns:
        (num_rows, size)
    """
    import torch

    sums = np.zeros((weights.shape[0], matrix.shape[1]), np.int32)  # all bits 0 are 0.0
    row_filler(np.full(weights.shape[0], -1), weights, bits_of(matrix.float()), "float32")(0, sums)
    return torch.from_numpy(sums).view(torch.float32)


def row_filler(source_ids: np.ndarray, weights: sparse.csr_matrix, matrix: Bits, dtype_name: str) -> FillRows:
    """What makes rows of a matrix: copies bit for bit, and sums in float32 that are rounded once to its dtype; it leaves the others as they are.

    Each sum is taken in the order of its entries, so blocks of rows do not change it.

    Args:
        source_ids: (num_rows,) int64, the row to copy; -1 where none is.
        weights: (num_rows, at most num_source_rows), without entries in rows that are copied.
        matrix: (num_source_rows, size), the bits of any floating dtype.
        dtype_name: torch's name of it.
    """

    def fill(start: int, rows: Bits) -> None:
        ids, some = source_ids[start : start + len(rows)], weights[start : start + len(rows)]
        copied, summed = np.flatnonzero(ids >= 0), np.flatnonzero(np.diff(some.indptr))
        rows[copied] = matrix[ids[copied]]
        if len(summed):
            some = some[summed]
            used, places = np.unique(some.indices, return_inverse=True)
            taken = sparse.csr_matrix((some.data.astype(np.float32), places, some.indptr), shape=(len(summed), len(used)))
            sums = taken @ numbers_of(matrix[used], dtype_name).astype(np.float32, copy=False)
            rows[summed] = rounded_to(sums, dtype_name)

    return fill
