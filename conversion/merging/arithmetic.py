"""The arithmetic of merging, one tensor at a time and a block of its rows at a time, in float32.

Whatever a tensor's size, some blocks of it are in memory.  What has to know the whole tensor (an angle, the k-th largest magnitude) reads
it once more before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from common.artifacts import digest_bytes

Rows = Callable[[int, int], Tensor]
"""Gives the rows from one number to before another of a tensor as float32, (stop - start, ...); a vector's rows are its elements."""
_BLOCK_ELEMENTS = 1 << 21
_PARALLEL = 0.9995  # cosine from which on two tensors are treated as parallel, and interpolated linearly


def blocks(shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First row of each block, and one past its last."""
    num_rows, width = (shape[0] if shape else 1), math.prod(shape[1:])
    step = max(1, _BLOCK_ELEMENTS // max(1, width))
    return ((start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def linear(values: Sequence[Rows], weights: Sequence[float], shape: Sequence[int]) -> Iterator[Tensor]:
    """The mean with weights (model soups, Wortsman et al. 2022)."""
    total = sum(weights)
    for block in blocks(shape):
        yield _sum(values, weights, block) / total


def slerp(first: Rows, second: Rows, place: float, shape: Sequence[int]) -> Iterator[Tensor]:
    """The point at `place` on the arc from one tensor (0) to another (1), each taken as one vector (Shoemake 1985)."""
    products = torch.zeros(3, dtype=torch.float64)
    for block in blocks(shape):
        a, b = (rows(*block).double().flatten() for rows in (first, second))
        products += torch.stack([a @ b, a @ a, b @ b])
    dot, *squares = products.tolist()
    lengths = [math.sqrt(square) or 1.0 for square in squares]
    cosine = dot / (lengths[0] * lengths[1])
    weights = (1 - place, place)
    if abs(cosine) <= _PARALLEL:
        angle = math.acos(cosine)
        weights = (math.sin((1 - place) * angle) / math.sin(angle), math.sin(place * angle) / math.sin(angle))
    for block in blocks(shape):
        yield _sum((first, second), weights, block)


def task_arithmetic(start: Rows, deltas: Sequence[Rows], weights: Sequence[float], shape: Sequence[int]) -> Iterator[Tensor]:
    """Start and the differences times their weights (task vectors, Ilharco et al. 2023; chat vectors, Huang et al. 2024)."""
    for block in blocks(shape):
        yield start(*block) + _sum(deltas, weights, block)


def ties(start: Rows, deltas: Sequence[Rows], weights: Sequence[float], shape: Sequence[int], *, density: float) -> Iterator[Tensor]:
    """Start and what the largest differences agree on (TIES, Yadav et al. 2023).

    Of each difference the share `density` of the largest magnitudes is kept, at least one; each element gets the sign of the sum of what
    is kept, times weights, and is the mean, by weights, of those that have that sign.
    """
    trims = [_Trim.of(delta, shape, density) for delta in deltas]
    for block in blocks(shape):
        kept = [trim(delta(*block)) for trim, delta in zip(trims, deltas, strict=True)]
        yield start(*block) + _elected(kept, weights, is_mean=True)


def dare(
    start: Rows,
    deltas: Sequence[Rows],
    weights: Sequence[float],
    shape: Sequence[int],
    *,
    density: float,
    seed: int,
    name: str,
    elects: bool,
) -> Iterator[Tensor]:
    """Start and the differences of which the share `density` is drawn and divided by it (DARE, Yu et al. 2024).

    Args:
        name: of the tensor, by which and the seed is drawn: whatever the order and layout of the tensors, the same.
        elects: whether only those of the elected sign are added, as with TIES.
    """
    draws = [draw(density, seed, f"{name} {number}") for number in range(len(deltas))]
    for block in blocks(shape):
        kept = [delta(*block) for delta in deltas]
        kept = [drawn(rows) for drawn, rows in zip(draws, kept, strict=True)]
        added = _elected(kept, weights, is_mean=False) if elects else sum(w * rows for w, rows in zip(weights, kept, strict=True))
        yield start(*block) + added


def draw(density: float, seed: int, name: str) -> Callable[[Tensor], Tensor]:
    """Gives of the blocks of a tensor, in their order, what is drawn, divided by the share that is."""
    generator = torch.Generator().manual_seed(int(digest_bytes(f"{seed} {name}".encode()).rpartition(":")[2][:15], 16))
    return lambda rows: rows * (torch.rand(rows.shape, generator=generator) < density) / density


def _sum(parts: Sequence[Rows], weights: Sequence[float], block: tuple[int, int]) -> Tensor:
    first, *others = parts
    total = weights[0] * first(*block)
    for weight, part in zip(weights[1:], others, strict=True):
        total += weight * part(*block)
    return total


def _elected(kept: Sequence[Tensor], weights: Sequence[float], *, is_mean: bool) -> Tensor:
    weighted = torch.stack([weight * rows for weight, rows in zip(weights, kept, strict=True)])
    sign = torch.where(weighted.sum(dim=0) >= 0, 1.0, -1.0)
    agrees = weighted.sign() == sign
    total = (weighted * agrees).sum(dim=0)
    if not is_mean:
        return total
    shares = torch.tensor(weights).view(-1, *(1,) * (weighted.dim() - 1)) * agrees
    divisor = shares.sum(dim=0)
    return total / torch.where(divisor == 0, 1.0, divisor)


class _Trim:
    """Keeps the largest magnitudes of a tensor that comes in blocks, of equal ones the first."""

    def __init__(self, threshold: float, num_equal: int) -> None:
        self._threshold, self._num_equal = threshold, num_equal

    @classmethod
    def of(cls, rows: Rows, shape: Sequence[int], density: float) -> _Trim:
        """Find the smallest magnitude that is kept: by its upper sixteen bits, then by all of them (magnitudes are ordered as their bits are)."""
        num_elements = math.prod(shape)
        num_kept = min(num_elements, max(1, int(density * num_elements)))
        if num_kept == num_elements:
            return cls(-1.0, 0)
        upper = torch.zeros(1 << 16, dtype=torch.int64)
        for block in blocks(shape):
            upper += torch.bincount(_bits(rows(*block)) >> 16, minlength=1 << 16)
        high, above = _place(upper, num_kept)
        lower = torch.zeros(1 << 16, dtype=torch.int64)
        for block in blocks(shape):
            bits = _bits(rows(*block))
            lower += torch.bincount(bits[bits >> 16 == high] & 0xFFFF, minlength=1 << 16)
        low, above_low = _place(lower, num_kept - above)
        threshold = torch.tensor(high << 16 | low, dtype=torch.int32).view(torch.float32)
        return cls(float(threshold), num_kept - above - above_low)

    def __call__(self, rows: Tensor) -> Tensor:
        """The next block with what is too small set to 0."""
        sizes = rows.abs()
        keeps = sizes > self._threshold
        equal = torch.nonzero((sizes == self._threshold).flatten()).flatten()[: self._num_equal]
        self._num_equal -= len(equal)
        keeps.view(-1)[equal] = True
        return rows * keeps


def _bits(rows: Tensor) -> Tensor:
    return rows.abs().contiguous().view(torch.int32).flatten().to(torch.int64)


def _place(counts: Tensor, num_kept: int) -> tuple[int, int]:
    """The highest number from which on at least `num_kept` are counted, and how many are counted above it."""
    from_here = counts.flip(0).cumsum(0).flip(0)
    number = int(torch.nonzero(from_here >= num_kept).max())
    return number, int(from_here[number] - counts[number])
