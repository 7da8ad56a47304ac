"""What a learned method is told: how long, on what, how fast; and from which model it learns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

OUTPUT_ROWS = ("mean", "learned")
LEARNING_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class LearningOptions:
    """How rows are learned.

    Attributes:
        num_steps: batches that are learned from.
        device: where the model runs; None for a GPU where there is one.
        dtype: of the frozen weights; None for float32 on a CPU and bfloat16 elsewhere.  The rows that learn are float32 in any case.
        batch_size: windows of text in a step.
        window_tokens: most tokens of a window, in either tokenization.
        learning_rate: what Adam moves a value by in the first step, as a share of the root mean square of the source's rows, so that it
            means the same for every model; it falls to zero in a straight line.
        min_contexts: tokens that are in fewer windows keep their start.
        output_rows: with token distillation, `mean` of the pieces or `learned` from the next token (`next-token` and `alm` always learn them).
        layer: with token distillation, the layer whose states are compared, from 1; None for the last, behind its norm.
        state: file that keeps what has been learned until the transfer is written; None to keep nothing.
    """

    num_steps: int = 200
    device: str | None = None
    dtype: str | None = None
    batch_size: int = 8
    window_tokens: int = 64
    learning_rate: float = 0.005
    min_contexts: int = 3
    output_rows: str = "mean"
    layer: int | None = None
    state: Path | None = None

    def __post_init__(self) -> None:
        limits = (
            ("--steps", self.num_steps, 1),
            ("--batch-size", self.batch_size, 1),
            ("--sequence-length", self.window_tokens, 4),
            ("--min-contexts", self.min_contexts, 1),
            ("--distilled-layer", 1 if self.layer is None else self.layer, 1),
        )
        for flag, value, least in limits:
            if value < least:
                raise ValueError(f"{flag} is {value}; expected {least} or more")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"--learning-rate is {self.learning_rate}; expected a number above 0")
        for flag, word, known in (("--output-rows", self.output_rows, OUTPUT_ROWS), ("--dtype", self.dtype, (None, *LEARNING_DTYPES))):
            if word not in known:
                raise ValueError(f"{flag} is {word!r}; expected {' or '.join(filter(None, known))}")


@dataclass(frozen=True)
class Teacher:
    """The model whose rows are transferred, for methods that run it.

    Attributes:
        directory: its folder.
        output_layer: what becomes of the output layer, one of `OUTPUT_LAYERS`.
        random_statistics: as `TransferRequest` has it.
    """

    directory: Path
    output_layer: str
    random_statistics: str
    options: LearningOptions
