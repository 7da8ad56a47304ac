"""Whether blocks fill a box exactly: none beyond it, none over another, nothing left open."""

from __future__ import annotations

import math
from collections.abc import Sequence

Block = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins in the box, and its sizes

# Comparisons of two blocks for each block: in a grid of n x n, which is the worst that programs write, there are n.
_FREE_COMPARISONS = 1_000_000
_COMPARISONS_PER_BLOCK = 1_000


def tiling_problem(shape: Sequence[int], blocks: Sequence[Block]) -> str:
    """What is wrong with blocks that should fill a box of this shape; empty if nothing is.

    Args:
        blocks: each of as many dimensions as the box.
    """
    for offsets, sizes in blocks:
        if any(offset + size > whole for offset, size, whole in zip(offsets, sizes, shape, strict=True)):
            return f"the block at {list(offsets)} is beyond its shape"
    filled = sum(math.prod(sizes) for _, sizes in blocks)
    if filled < math.prod(shape):
        return f"they hold {filled:,} of its {math.prod(shape):,} values"
    if (at := _overlap([block for block in blocks if math.prod(block[1])])) is not None:
        return f"two lie over each other at {list(at)}"
    return ""


def _overlap(blocks: list[Block]) -> tuple[int, ...] | None:
    """Where a block begins that shares something with another; blocks are met in order along the dimension that tells most apart."""
    if len(blocks) < 2:
        return None
    axis = max(range(len(blocks[0][0])), key=lambda axis: len({offsets[axis] for offsets, _ in blocks}), default=None)
    if axis is None:
        return blocks[0][0]  # two numbers in one place
    comparisons_left = _FREE_COMPARISONS + _COMPARISONS_PER_BLOCK * len(blocks)
    open_blocks: list[Block] = []
    for block in sorted(blocks, key=lambda block: block[0][axis]):
        begin = block[0][axis]
        open_blocks = [other for other in open_blocks if other[0][axis] + other[1][axis] > begin]
        comparisons_left -= len(open_blocks)
        if comparisons_left < 0 or any(_share(block, other) for other in open_blocks):
            return block[0]
        open_blocks.append(block)
    return None


def _share(a: Block, b: Block) -> bool:
    return all(
        first < second + second_size and second < first + first_size
        for first, first_size, second, second_size in zip(a[0], a[1], b[0], b[1], strict=True)
    )
