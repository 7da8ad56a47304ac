"""The most similar anchors of many vectors, exactly, by looking at few directions first.

Vectors of tokens vary much in some directions and little in most.  With both sides rotated so that these come first, the cosine of q
and a is at most q1 . a1 + |q2| |a2|, where 1 are the leading directions and 2 the rest (Cauchy and Schwarz): one product of few more
columns than leading directions gives a bound for every pair, and only pairs with the largest bounds are looked at in full.  What
they need is then compared with the best bound of the others, so the result is that of all pairs.

Where most directions matter, products in bfloat16 are such bounds too, of which a processor makes two to three in the time of one in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from common.devices import has_bfloat16
from conversion.embeddings.spaces.token_vectors import Rows

if TYPE_CHECKING:
    from torch import Tensor

Weigh = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Found = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids of new vectors, their weights, and the anchors that these belong to

_BLOCK_VALUES = 1 << 23  # similarities at once: 32 MiB in float32
_CACHED_VALUES = 1 << 20  # of products with few directions: 4 MiB; twice as fast as in larger pieces
_GATHERED_VALUES = 1 << 20  # of vectors that are looked at in full
_FIRST_WIDTH = 64
_FEWEST_PAIRS = 1 << 27  # fewer similarities are computed before the directions are found
_SAMPLE_ROWS = 4096
_ROTATION_ROWS = 8192  # whose directions are taken: any rotation gives true bounds
_GROUP_SIZE = 16  # anchors of which only the largest bound is compared first
_MOST_REST = 0.005  # largest mean of |q2| |a2|: with more, too many pairs have large bounds
_ENOUGH_DONE = 0.9  # share of new vectors for which the first width should do
_FULL_SHARE = 8  # from an eighth of the anchors on it is cheaper to look at all
_ROUNDING = 1e-5  # of a cosine in float32
_BRIEF_ROUNDING = 0.00392  # of a cosine in bfloat16: 2^-8 and a bit


def unit_rows(vectors: Rows) -> np.ndarray:
    """(len(vectors), size) rows of length one, in float32; rows of zeros stay zeros."""
    unit = np.empty(vectors.shape, dtype=np.float32)
    for start in range(0, len(vectors), _SAMPLE_ROWS):  # in blocks: the lengths are taken in float64
        block = vectors[start : start + _SAMPLE_ROWS].astype(np.float64)
        lengths = np.linalg.norm(block, axis=1, keepdims=True)
        unit[start : start + _SAMPLE_ROWS] = block / np.where(lengths > 0, lengths, 1)
    return unit


def row_lengths(vectors: Rows) -> np.ndarray:
    """(len(vectors),) Euclidean lengths, in float64."""
    blocks = (vectors[start : start + _SAMPLE_ROWS] for start in range(0, len(vectors), _SAMPLE_ROWS))
    return np.concatenate([np.zeros(0), *(np.linalg.norm(block.astype(np.float64), axis=1) for block in blocks)])


def nearest_anchors(new: Rows, anchors: Rows, weigh: Weigh, *, num_neighbors: int = 1) -> Iterator[Found]:
    """The weights of as many of each new vector's nearest anchors as matter, for some of the new vectors at a time.

    Args:
        new: (num_new, size), without rows of zeros.
        anchors: (num_anchors, size), without rows of zeros.
        weigh: from cosines (num_rows, width), each row sorted from the largest down, weights (num_rows, width), and (num_rows,) the cosine
            below which an anchor has no weight whatever other anchors there are.
        num_neighbors: least width that `weigh` can work on, if there are so many anchors.

    Yields:
        ids of new vectors (num_rows,), their weights (num_rows, width) float64, and the anchors that these belong to (num_rows, width)
    """
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    search = _Search.of(unit_rows(anchors), new, device)
    block_rows = max(1, min(len(new), _BLOCK_VALUES // len(anchors)))
    blocks = [np.arange(start, min(start + block_rows, len(new))) for start in range(0, len(new), block_rows)]
    width = min(max(_FIRST_WIDTH, num_neighbors), len(anchors))
    # Blocks go to threads of their own: the steps within one are too small to be divided.
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(1 if device.type == "cuda" else num_threads) as pool:
            for block in blocks[:1]:
                num_done = 0
                for one in search.weights(new, block, width, weigh):
                    yield one
                    # Where many vectors of the first block need more anchors than that, all others begin with more.
                    num_done += len(one[0])
                    width = width if num_done >= _ENOUGH_DONE * len(block) else min(2 * width, len(anchors))
            for found in pool.map(lambda block: search.weights(new, block, width, weigh), blocks[1:]):
                yield from found
    finally:
        torch.set_num_threads(num_threads)


@dataclass(frozen=True)
class _Search:
    """Anchors, and their leading directions.

    Attributes:
        anchors: (num_anchors, size) of length one.
        rotation: (size, size) orthogonal, leading directions first; None where all directions are needed.
        num_leading: how many of them the bounds use.
        bounding: (num_anchors, num_leading + 1) leading coordinates and the length of the rest.
        brief: (num_anchors, size) in bfloat16, where all directions are needed and this is faster; None elsewhere.
        brief_lost: the most that this took from an anchor.
    """

    anchors: Tensor
    rotation: Tensor | None
    num_leading: int
    bounding: Tensor
    brief: Tensor | None = None
    brief_lost: float = 0.0

    @classmethod
    def of(cls, anchors: np.ndarray, new: Rows, device: object) -> _Search:
        """Of anchors (num_anchors, size) of length one, for new vectors (num_new, size)."""
        import torch

        unit = torch.from_numpy(anchors).to(device)  # type: ignore[call-overload]
        if unit.is_cuda or len(anchors) * len(new) < _FEWEST_PAIRS:
            return cls(unit, None, 0, unit)
        sample = torch.from_numpy(anchors[:: max(1, len(anchors) // _ROTATION_ROWS)])
        _, vectors = np.linalg.eigh((sample.T @ sample).double().numpy())
        rotation = torch.from_numpy(np.ascontiguousarray(vectors[:, ::-1])).float()
        samples = (anchors[:: max(1, len(anchors) // _SAMPLE_ROWS)], unit_rows(new[:: max(1, len(new) // _SAMPLE_ROWS)]))
        rests = [_rest_lengths(torch.from_numpy(np.ascontiguousarray(sample)) @ rotation).mean(dim=0) for sample in samples]
        enough = torch.nonzero(rests[0] * rests[1] <= _MOST_REST).flatten()
        num_leading = int(enough[0]) if len(enough) else unit.shape[1]
        if 2 * num_leading > unit.shape[1] and not has_bfloat16():
            return cls(unit, None, 0, unit)
        if 2 * num_leading > unit.shape[1]:
            brief = unit.to(torch.bfloat16)
            lost = max(
                float((one - other.float()).norm(dim=1).max()) for one, other in zip(unit.split(_SAMPLE_ROWS), brief.split(_SAMPLE_ROWS))
            )
            return cls(unit, None, 0, unit, brief, lost)
        return cls(unit, rotation, num_leading, _leading_and_rest(unit, rotation, num_leading))

    def weights(self, new: Rows, ids: np.ndarray, width: int, weigh: Weigh) -> list[Found]:
        """The weights of some new vectors, as `nearest_anchors` yields them; those that need more anchors than `width` come later.

        Args:
            new: (num_new, size)
            ids: (num_rows,) of the vectors in `new` that are wanted.
        """
        import torch

        found = []
        queries = torch.from_numpy(unit_rows(new[ids])).to(self.anchors.device)
        while len(ids):
            cosines, columns, best_other = self.largest(queries, width, weigh)
            weights, threshold = weigh(cosines)
            is_done = (threshold >= best_other) | (width == len(self.anchors))
            found.append((ids[is_done], weights[is_done], columns[is_done]))
            ids, queries, width = ids[~is_done], queries[torch.from_numpy(~is_done)], min(2 * width, len(self.anchors))
        return found

    def largest(self, queries: Tensor, width: int, weigh: Weigh) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The largest cosines of each query from the largest down, their anchors, and a bound of the cosines of all other anchors.

        With leading directions these are the cosines of the largest bounds, and of these only as many as can matter: what the least
        possible cosines leave out is left out by the true ones, since more similarity never lowers a threshold.

        Args:
            queries: (num_rows, size) of length one.

        Returns:
            (num_rows, most) cosines, where `most` is `width` or less; (num_rows, most) their anchors; and (num_rows,) the bounds
        """
        import torch

        others = min(width + 1, len(self.anchors))
        if (self.rotation is None and self.brief is None) or _FULL_SHARE * width >= len(self.anchors):
            cosines, columns = (queries @ self.anchors.T).topk(others, dim=1)
            return _numpy(cosines[:, :width]), _numpy(columns[:, :width]), _numpy(cosines[:, -1])
        bounds, columns, uncertainty = self._largest_bounds(queries, others)
        least = bounds - uncertainty - 2 * _ROUNDING
        _, threshold = weigh(_numpy(least[:, :width].sort(dim=1, descending=True).values))
        widths = (_numpy(bounds[:, :width]) + _ROUNDING >= threshold[:, None]).sum(axis=1)
        width = int(widths.max())
        cosines = self._cosines(queries, columns[:, :width], widths)
        cosines, order = cosines.sort(dim=1, descending=True, stable=True)
        return _numpy(cosines), _numpy(torch.gather(columns[:, :width], 1, order)), _numpy(bounds[:, width]) + _ROUNDING

    def _largest_bounds(self, queries: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """The largest bounds, their anchors, and how far below its bound a cosine may be, (num_queries, width) each."""
        if self.brief is not None:
            return self._largest_brief(queries, self.brief, width)
        assert self.rotation is not None
        leading = _leading_and_rest(queries, self.rotation, self.num_leading)
        bounds, columns = self._largest_in_pieces(leading, lambda piece: piece @ self.bounding.T, width)
        return bounds, columns, 2 * leading[:, -1:] * self.bounding[:, -1][columns]

    def _largest_brief(self, queries: Tensor, brief: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same from products in bfloat16: of both factors what rounding took, and what it takes of the product."""
        import torch

        rounded = queries.to(torch.bfloat16)
        lost = (queries - rounded.float()).norm(dim=1, keepdim=True)
        error = self.brief_lost + lost * (1 + self.brief_lost) + _BRIEF_ROUNDING
        products, columns = self._largest_in_pieces(rounded @ brief.T, lambda piece: piece.float(), width)
        return products + error, columns, 2 * error

    def _largest_in_pieces(self, rows: Tensor, values: Callable[[Tensor], Tensor], width: int) -> tuple[Tensor, Tensor]:
        """The largest values of each row and their columns, (num_rows, width) each, in pieces that stay in the cache."""
        import torch

        pieces = [_largest(values(piece), width) for piece in rows.split(max(1, _CACHED_VALUES // len(self.anchors)))]
        return torch.cat([values for values, _ in pieces]), torch.cat([columns for _, columns in pieces])

    def _cosines(self, queries: Tensor, columns: Tensor, widths: np.ndarray) -> Tensor:
        """(num_queries, width) cosines of each query and as many of its own anchors as `widths` says; -inf for the others."""
        import torch

        cosines = torch.full(columns.shape, -torch.inf)
        order = np.argsort(widths, kind="stable")  # queries that need few anchors are not computed with many
        start = 0
        while start < len(order):
            width = int(widths[order[start]])
            rows = max(1, _GATHERED_VALUES // (width * queries.shape[1]))
            block = torch.from_numpy(order[start : start + rows])
            width = int(widths[block[-1]])
            gathered = self.anchors[columns[block, :width].flatten()].view(len(block), width, -1)
            cosines[block, :width] = torch.bmm(gathered, queries[block, :, None])[:, :, 0]
            start += rows
        return cosines


def _largest(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The largest values of each row and their columns, as `topk` finds them: first those groups whose largest value is large.

    The largest values lie in as many groups at most; finding the largest of each group costs a fraction of sorting all.
    """
    import torch

    num_groups = values.shape[1] // _GROUP_SIZE
    if num_groups < 2 * width:
        return tuple(values.topk(width, dim=1))  # type: ignore[return-value]
    grouped = values[:, : num_groups * _GROUP_SIZE].view(len(values), _GROUP_SIZE, num_groups)
    groups = grouped.amax(dim=1).topk(width, dim=1).indices
    columns = (groups[:, :, None] + num_groups * torch.arange(_GROUP_SIZE)).flatten(1)
    rest = torch.arange(num_groups * _GROUP_SIZE, values.shape[1]).expand(len(values), -1)
    columns = torch.cat([columns, rest], dim=1)
    largest = values.gather(1, columns).topk(width, dim=1)
    return largest.values, columns.gather(1, largest.indices)


def _leading_and_rest(rows: Tensor, rotation: Tensor, num_leading: int) -> Tensor:
    """(num_rows, num_leading + 1) coordinates in the leading directions and the length of what is left, or a little more."""
    import torch

    leading = rows @ rotation[:, :num_leading]
    rest = (1 - leading.square().sum(dim=1, keepdim=True)).clamp_min(0) + _ROUNDING
    return torch.cat([leading, rest.sqrt()], dim=1)


def _rest_lengths(rotated: Tensor) -> Tensor:
    """(num_rows, size) length of what is left of each row from each direction on."""
    return rotated.square().flip(1).cumsum(dim=1).flip(1).sqrt()


def _numpy(values: Tensor) -> np.ndarray:
    return values.cpu().numpy() if not values.is_floating_point() else values.double().cpu().numpy()
