"""Training of token rows while the rest of the model is frozen: the loop, its optimizer, and resuming after an interruption."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from common.progress import Progress

SAVE_SECONDS = 60.0
_BETAS = (0.9, 0.95)
_EPSILON = 1e-12  # far below any gradient of a row: those of a divergence at temperature 100 are of the order of 1e-6
_NUM_POINTS = 50  # of the curve in the report


class RowAdam:
    """Adam (Kingma and Ba 2015) for the rows of a matrix: a row without a gradient neither moves nor ages.

    In most batches most tokens do not occur.  Adam for whole matrices would let its averages fade meanwhile, and move each row on by its last
    gradient for many steps.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.mean = torch.zeros_like(rows)
        self.square = torch.zeros_like(rows)
        self.count = torch.zeros(len(rows), dtype=torch.float32, device=rows.device)

    def step(self, gradient: Tensor, rate: float) -> None:
        """Move the rows that have a gradient, by about `rate` in each value; the gradient is (num_learned, size) as the rows."""
        here = torch.nonzero(gradient.abs().amax(dim=1)).flatten()
        gradient, (first, second) = gradient[here], _BETAS
        self.count[here] += 1
        count = self.count[here, None]
        mean = self.mean[here].mul_(first).add_(gradient, alpha=1 - first)
        square = self.square[here].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        self.mean[here], self.square[here] = mean, square
        scale = (square / (1 - second**count)).sqrt_().add_(_EPSILON)
        self.rows.data[here] -= rate * (mean / (1 - first**count)) / scale

    def tensors(self, name: str) -> dict[str, Tensor]:
        """All that a later step depends on, by name: rows, mean and square (num_learned, size), and count (num_learned,)."""
        parts = {"rows": self.rows.detach(), "mean": self.mean, "square": self.square, "count": self.count}
        return {f"{name}.{part}": tensor for part, tensor in parts.items()}


@dataclass(frozen=True)
class Learned:
    """What learning gave.

    Attributes:
        rows: layer -> (num_learned, size) float32 on the CPU.
        losses: of each step.
        first_step: where an earlier, interrupted learning had come to; 0 if there was none.
        seconds: that this one took.
    """

    rows: dict[str, Tensor]
    losses: list[float]
    first_step: int
    seconds: float

    def curve(self) -> list[list[float]]:
        """[last step, mean loss] of at most 50 stretches of steps."""
        length = -(-len(self.losses) // _NUM_POINTS)
        parts = [(start, self.losses[start : start + length]) for start in range(0, len(self.losses), length)]
        return [[start + len(part), sum(part) / len(part)] for start, part in parts]


def learn_rows(
    start: Mapping[str, Tensor],
    loss_of: Callable[[int, Mapping[str, Tensor]], Tensor],
    *,
    rates: Mapping[str, float],
    num_steps: int,
    label: str,
    identity: str,
    state: Path | None = None,
) -> Learned:
    """Take so many steps down a loss, and keep what has been learned once a minute.

    Args:
        start: layer -> (num_learned, size) float32, where learning begins; on the device where it happens.
        loss_of: step, from 0, and rows by layer -> loss, a scalar.  Must depend on nothing else.
        rates: layer -> rate of the first step; it falls to zero in a straight line.
        identity: digest of all that decides the result; what is kept of another learning is left alone until it is written over.
        state: file to keep it in, and to go on from.

    Raises:
        ValueError: if the loss is not a finite number.
    """
    began = time.monotonic()
    rows = {name: tensor.clone().requires_grad_(True) for name, tensor in start.items()}
    optimizers = {name: RowAdam(tensor) for name, tensor in rows.items()}
    losses = _resume(state, identity, optimizers)
    first_step, saved = len(losses), time.monotonic()
    with Progress(label, total=num_steps, unit="steps") as progress:
        progress.advance(first_step)
        for step in range(first_step, num_steps):
            loss = loss_of(step, rows)
            if not torch.isfinite(loss):
                raise ValueError(f"the loss is {loss.item()} at step {step + 1} of learning; learn with a lower --learning-rate")
            gradients = torch.autograd.grad(loss, list(rows.values()))
            for (name, optimizer), gradient in zip(optimizers.items(), gradients):
                optimizer.step(gradient, rates[name] * (1 - step / num_steps))
            losses.append(loss.item())
            progress.advance()
            if state is not None and time.monotonic() - saved >= SAVE_SECONDS:
                _save(state, identity, optimizers, losses)
                saved = time.monotonic()
    if state is not None and first_step < num_steps:
        _save(state, identity, optimizers, losses)
    learned = {name: tensor.detach().float().cpu() for name, tensor in rows.items()}
    return Learned(learned, losses, first_step, time.monotonic() - began)


def _save(path: Path, identity: str, optimizers: Mapping[str, RowAdam], losses: list[float]) -> None:
    tensors = {key: tensor.cpu().contiguous() for name, optimizer in optimizers.items() for key, tensor in optimizer.tensors(name).items()}
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(tensors, aside, metadata={"identity": identity})
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _resume(path: Path | None, identity: str, optimizers: Mapping[str, RowAdam]) -> list[float]:
    """Put what was kept in its places and give the losses so far; none where nothing is kept of the same learning."""
    if path is None or not path.is_file():
        return []
    try:
        with safe_open(path, "pt") as kept:
            if (kept.metadata() or {}).get("identity") != identity:
                return []
            for name, optimizer in optimizers.items():
                for key, tensor in optimizer.tensors(name).items():
                    tensor.copy_(kept.get_tensor(key))
            return [float(value) for value in kept.get_tensor("losses")]
    except SafetensorError:
        return []
