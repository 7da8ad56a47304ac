"""Affine maps between two spaces, fitted on pairs of rows: the semantic alignment of SAVA.

SAVA's recipe (Moroni et al. 2025, appendix A): scale every column on both sides to mean 0 and deviation 1, make every row of
length 1, fit, and undo the target's scaling with the mean length of its scaled rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from conversion.embeddings.spaces.token_vectors import Rows

AffineFit = Literal["least-squares", "plain", "adam", "procrustes", "ortho"]

_ADAM_STEPS, _ADAM_LEARNING_RATE = 1000, 1e-3  # SAVA, appendix A
_RIDGE = 1e-6  # of the mean diagonal: only against a singular system
_RIDGES = np.geomspace(_RIDGE, 1e3, 46)  # of the mean diagonal, of which cross-validation chooses
_FEW_PAIRS = 10  # per dimension: below, least squares fit the noise of the pairs more than Adam's thousand steps do
_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class _Scaling:
    """Columns to mean 0 and deviation 1, rows to length 1.

    Attributes:
        mean, deviation: (size,) float64.
        length: mean length of the rows then, which `undo` gives them.
        makes_unit: whether rows get length 1.
    """

    mean: np.ndarray
    deviation: np.ndarray
    length: float
    makes_unit: bool = True

    @classmethod
    def of(cls, rows: Rows) -> _Scaling:
        """Scaling of the given rows: float64 statistics, gathered block by block."""
        mean = _mean(rows)
        squares = sum((np.square(block - mean).sum(axis=0) for block in _blocks(rows)), start=np.zeros(rows.shape[1]))
        deviation = np.sqrt(squares / max(len(rows) - 1, 1))
        deviation = np.where(deviation > 0, deviation, 1.0)
        lengths = sum(np.linalg.norm((block - mean) / deviation, axis=1).sum() for block in _blocks(rows))
        return cls(mean, deviation, float(lengths / len(rows)))

    @classmethod
    def none(cls, rows: Rows) -> _Scaling:
        """Scaling that leaves rows as they are, but for their mean, which an affine map makes good."""
        return cls(_mean(rows), np.ones(rows.shape[1]), 1.0, makes_unit=False)

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Scaled (num_rows, size), float64."""
        scaled = (rows - self.mean) / self.deviation
        if not self.makes_unit:
            return scaled
        lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
        return scaled / np.where(lengths > 0, lengths, 1.0)

    def undo(self, rows: np.ndarray) -> np.ndarray:
        """The opposite of `apply` for (num_rows, size), but that it gives rows the mean length."""
        return rows * self.length * self.deviation + self.mean


def fit_map(source: Rows, target: Rows, *, fit: AffineFit, seed: int) -> Callable[[Rows], np.ndarray]:
    """Fit a map from rows of one space to the rows of another that belong to them.

    Args:
        source: (num_pairs, source_size)
        target: (num_pairs, target_size)
        fit: `least-squares` in closed form (few pairs: a ridge, its strength chosen by cross-validation), `plain` the same without
            scaling, `adam` as SAVA's code, `procrustes` (a rotation, with zeros for missing dimensions), or `ortho`, the rotation of
            SAVA's code (columns scaled once more before it, and back after).
        seed: of Adam's first weights.

    Returns:
        From (num_rows, source_size) to (num_rows, target_size) float32.
    """
    scaling = _Scaling.none if fit == "plain" else _Scaling.of
    source_scaling, target_scaling = scaling(source), scaling(target)
    if fit in ("least-squares", "plain", "procrustes"):
        pairs = ((source_scaling.apply(x), target_scaling.apply(y)) for x, y in zip(_blocks(source), _blocks(target)))
        weight, bias = _rotation(pairs) if fit == "procrustes" else _least_squares(pairs)
    else:
        x, y = (scaling.apply(rows[:].astype(np.float64)) for scaling, rows in ((source_scaling, source), (target_scaling, target)))
        weight, bias = _adam(x, y, seed) if fit == "adam" else _rescaled_rotation(x, y)

    def mapping(rows: Rows) -> np.ndarray:
        mapped = np.empty((len(rows), target.shape[1]), dtype=np.float32)
        for start, block in zip(range(0, len(rows), _BLOCK_ROWS), _blocks(rows)):
            mapped[start : start + len(block)] = target_scaling.undo(source_scaling.apply(block) @ weight + bias)
        return mapped

    return mapping


def _least_squares(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Minimise |x W + b - y|² by normal equations over blocks of rows, plus a ridge times |W|²: `_ridge` says how much.

    Rows are scaled to have small means, so that taking the means out of the sums of products costs no digits.
    """
    count, y_squares = 0, 0.0
    gram = cross = x_sum = y_sum = np.zeros(1)
    for x, y in pairs:
        count += len(x)
        gram, cross = gram + x.T @ x, cross + x.T @ y
        x_sum, y_sum, y_squares = x_sum + x.sum(axis=0), y_sum + y.sum(axis=0), y_squares + float(np.square(y).sum())
    x_mean, y_mean = x_sum / count, y_sum / count
    gram, cross = gram - count * np.outer(x_mean, x_mean), cross - count * np.outer(x_mean, y_mean)
    gram[np.diag_indices_from(gram)] += _ridge(gram, cross, y_squares - count * float(y_mean @ y_mean), count)
    weight = np.linalg.solve(gram, cross)
    return weight, y_mean - x_mean @ weight


def _ridge(gram: np.ndarray, cross: np.ndarray, y_squares: float, count: int) -> float:
    """What is added to the diagonal: next to nothing where pairs are many, else what generalised cross-validation chooses.

    Golub, Heath and Wahba 1979, equation 1.4: of the grid, the ridge with the least mean squared error over (1 - degrees of freedom / pairs)²,
    which stands for leaving out each pair in turn.

    Args:
        gram, cross: (size, size) and (size, target_size), sums of products of the centred pairs.
        y_squares: sum of squares of the centred targets.
        count: pairs.
    """
    scale = max(float(np.trace(gram)) / len(gram), float(np.finfo(np.float64).tiny))
    if count >= _FEW_PAIRS * len(gram):
        return _RIDGE * scale
    values, vectors = np.linalg.eigh(gram)
    values, explained = np.maximum(values, 0.0), np.square(vectors.T @ cross).sum(axis=1)

    def error(ridge: float) -> float:
        rest = y_squares - float((explained * (values + 2 * ridge) / np.square(values + ridge)).sum())
        return rest / (1 - (1 + float((values / (values + ridge)).sum())) / count) ** 2  # 1: the bias

    return min((float(ridge) for ridge in _RIDGES * scale), key=error)


def _adam(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Minimise the mean squared error of a linear layer on zero-padded rows from torch's default start, on a GPU where there is one."""
    import torch

    from conversion.checkpoints.hf_model import default_device

    device = default_device()
    size = max(x.shape[1], y.shape[1])
    inputs, outputs = (torch.from_numpy(np.pad(rows, ((0, 0), (0, size - rows.shape[1])))).float().to(device) for rows in (x, y))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(size, size).to(device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=_ADAM_LEARNING_RATE)
    for _ in range(_ADAM_STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(layer(inputs), outputs).backward()
        optimizer.step()
    weight = layer.weight.detach().cpu().double().numpy().T
    return weight[: x.shape[1], : y.shape[1]], layer.bias.detach().cpu().double().numpy()[: y.shape[1]]


def _rotation(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The rotation that brings x nearest to y in the larger of the two spaces (orthogonal Procrustes), of blocks of rows; its bias is 0.

    Dimensions that one of them lacks are zeros there, whose part of the rotation meets no row: the singular vectors of the others are enough.
    """
    cross = sum((x.T @ y for x, y in pairs), start=np.zeros(()))
    left, _, right = np.linalg.svd(cross, full_matrices=False)
    return left @ right, np.zeros(cross.shape[1])


def _rescaled_rotation(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same between columns that are brought to mean 0 and deviation 1 first, those of y back after."""
    (x_mean, x_deviation), (y_mean, y_deviation) = _columns(x), _columns(y)
    rotation, _ = _rotation([((x - x_mean) / x_deviation, (y - y_mean) / y_deviation)])
    weight = rotation / x_deviation[:, None] * y_deviation
    return weight, y_mean - x_mean @ weight


def _columns(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each column; 1 where it does not vary."""
    deviation = rows.std(axis=0, ddof=1)
    return rows.mean(axis=0), np.where(deviation > 0, deviation, 1.0)


def _mean(rows: Rows) -> np.ndarray:
    return sum((block.sum(axis=0) for block in _blocks(rows)), start=np.zeros(rows.shape[1])) / len(rows)


def _blocks(rows: Rows) -> Iterator[np.ndarray]:
    """Some rows at a time, in float64."""
    for start in range(0, len(rows), _BLOCK_ROWS):
        yield rows[start : start + _BLOCK_ROWS].astype(np.float64)
