"""Affine maps between two spaces, fitted on pairs of rows: the semantic alignment of SAVA.

SAVA's recipe (Moroni et al. 2025, appendix A): scale every column on both sides to mean 0 and deviation 1, make every row of
length 1, fit, and undo the target's scaling with the mean length of its scaled rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

AffineFit = Literal["least-squares", "adam", "procrustes"]

_ADAM_STEPS, _ADAM_LEARNING_RATE = 1000, 1e-3  # SAVA, appendix A
_RIDGE = 1e-6  # of the mean diagonal: only against a singular system


@dataclass(frozen=True)
class _Scaling:
    """Columns to mean 0 and deviation 1, rows to length 1."""

    mean: np.ndarray
    deviation: np.ndarray
    length: float

    @classmethod
    def of(cls, rows: np.ndarray) -> _Scaling:
        mean = rows.mean(axis=0)
        deviation = rows.std(axis=0, ddof=1) if len(rows) > 1 else np.ones(rows.shape[1])
        deviation = np.where(deviation > 0, deviation, 1.0)
        return cls(mean, deviation, float(np.linalg.norm((rows - mean) / deviation, axis=1).mean()))

    def apply(self, rows: np.ndarray) -> np.ndarray:
        scaled = (rows - self.mean) / self.deviation
        lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
        return scaled / np.where(lengths > 0, lengths, 1.0)

    def undo(self, rows: np.ndarray) -> np.ndarray:
        return rows * self.length * self.deviation + self.mean


def fit_map(source: np.ndarray, target: np.ndarray, *, fit: AffineFit, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a map from rows of one space to the rows of another that belong to them.

    Args:
        source: (num_pairs, source_size)
        target: (num_pairs, target_size)
        fit: `least-squares` in closed form, `adam` as SAVA's code, or `procrustes` (a rotation, with zeros for missing dimensions).
        seed: of Adam's first weights.

    Returns:
        From (num_rows, source_size) to (num_rows, target_size) float32.
    """
    source, target = source.astype(np.float64), target.astype(np.float64)
    source_scaling, target_scaling = _Scaling.of(source), _Scaling.of(target)
    x, y = source_scaling.apply(source), target_scaling.apply(target)
    weight, bias = {"least-squares": _least_squares, "adam": _adam, "procrustes": _procrustes}[fit](x, y, seed)

    def mapping(rows: np.ndarray) -> np.ndarray:
        mapped = source_scaling.apply(rows.astype(np.float64)) @ weight + bias
        return target_scaling.undo(mapped).astype(np.float32)

    return mapping


def _least_squares(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Minimise |x W + b - y| by normal equations on centred rows; they cost one product, and the ridge keeps them solvable."""
    x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
    x_centred, y_centred = x - x_mean, y - y_mean
    gram = x_centred.T @ x_centred
    gram[np.diag_indices_from(gram)] += _RIDGE * max(np.trace(gram) / len(gram), np.finfo(np.float64).tiny)
    weight = np.linalg.solve(gram, x_centred.T @ y_centred)
    return weight, y_mean - x_mean @ weight


def _adam(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Minimise the mean squared error of a linear layer on zero-padded rows from torch's default start."""
    import torch

    size = max(x.shape[1], y.shape[1])
    inputs, outputs = (torch.from_numpy(np.pad(rows, ((0, 0), (0, size - rows.shape[1])))).float() for rows in (x, y))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(size, size)
    optimizer = torch.optim.Adam(layer.parameters(), lr=_ADAM_LEARNING_RATE)
    for _ in range(_ADAM_STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(layer(inputs), outputs).backward()
        optimizer.step()
    weight = layer.weight.detach().double().numpy().T
    return weight[: x.shape[1], : y.shape[1]], layer.bias.detach().double().numpy()[: y.shape[1]]


def _procrustes(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rotation that brings x nearest to y, in the larger of the two spaces."""
    from scipy.linalg import orthogonal_procrustes

    size = max(x.shape[1], y.shape[1])
    padded = [np.pad(rows, ((0, 0), (0, size - rows.shape[1]))) for rows in (x, y)]
    rotation, _ = orthogonal_procrustes(*padded)
    return rotation[: x.shape[1], : y.shape[1]], np.zeros(y.shape[1])
