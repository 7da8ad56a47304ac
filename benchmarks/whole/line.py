"""The line through what was measured at several sizes, and what it says of another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.whole.results import Figure

_STRAIGHT = 0.05  # distance from a line, as a share, within which memory is taken for one


@dataclass(frozen=True)
class Line:
    """Of least squares.

    Attributes:
        start: where it begins, at no work.
        slope: by unit of work.
        worst: largest distance of a measured value from it, as a share of the value.
    """

    start: float
    slope: float
    worst: float

    def at(self, amount: float) -> float:
        """What an amount of work takes, if it goes on like this."""
        return self.start + self.slope * amount


def line_through(amounts: Sequence[float], values: Sequence[float]) -> Line:
    """Of at least two different amounts.

    Raises:
        ValueError: if there are fewer.
    """
    if len(set(amounts)) < 2:
        raise ValueError(f"a line needs two sizes, there are {len(set(amounts))}; measure more")
    fit = statistics.linear_regression(amounts, values)
    line = Line(fit.intercept, fit.slope, 0.0)
    worst = max(abs(line.at(amount) - value) / value for amount, value in zip(amounts, values, strict=True))
    return Line(fit.intercept, fit.slope, worst)


def growth_row(figures: Sequence[Figure], wanted: Sequence[tuple[str, float]]) -> tuple[str, ...]:
    """What a stage costs at its sizes, the lines through them, and what they say of amounts that were not measured."""
    figures = sorted(figures, key=lambda figure: figure.amount)
    amounts = [figure.amount for figure in figures]
    cpu = [statistics.median(figure.cpu_seconds) for figure in figures]
    memory = [figure.peak_bytes / 2**20 for figure in figures]
    line, growing = line_through(amounts, cpu), line_through(amounts, memory)
    # Memory that fills up, or that ranks share, is no line.
    is_line = growing.slope >= 0 and growing.worst <= _STRAIGHT
    says = [f"{label}: {_time(line.at(amount))}{f', {_size(growing.at(amount))}' if is_line else ''}" for label, amount in wanted]
    return (
        figures[0].case,
        f"{', '.join(f'{amount:.3g}' for amount in amounts)} {figures[0].unit}",
        ", ".join(f"{value:.1f}" for value in cpu),
        f"{line.start:.1f}",
        f"{line.slope:.3g}",
        f"{line.worst:.0%}",
        ", ".join(f"{value:,.0f}" for value in memory),
        "; ".join(says),
    )


GROWTH_HEADER = ("", "sizes", "CPU s", "start", "a unit", "farthest from the line", "MiB", "by the line")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} CPU s" if seconds < 600 else f"{seconds / 3600:.3g} CPU h"


def _size(mebibytes: float) -> str:
    return f"{mebibytes:,.0f} MiB" if mebibytes < 10_000 else f"{mebibytes / 1024:,.0f} GiB"
