"""Charts of scores: small drawings inside the page with the places of their lines, and figures by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.figure_style import LIGHT, MARKERS, Palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_COLOURS = len(LIGHT.series)
_WIDTH, _HEIGHT = 300, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 16, 8, 30
_MOST_DOTS = 30


@dataclass(frozen=True)
class Point:
    """A place on a line, such as a checkpoint's score, with the ends of its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """One run's curve, or a level where a model has no step."""

    name: str
    colour: int
    points: tuple[Point, ...]
    is_level: bool = False


def curve_panel(title: str, series: Sequence[Series], *, x_label: str) -> dict[str, Any]:
    """One score against training, as the macro `panel` of `charts.html` draws it."""
    curves = [s for s in series if not s.is_level]
    xs = [point.x for s in curves for point in s.points]
    ends = [v for s in series for p in s.points for v in (p.y, p.low, p.high) if v is not None]
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1)
    y_low, y_high = padded(min(ends), max(ends))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x_at(value: float) -> float:
        return round(_LEFT + (value - x_low) / (x_high - x_low) * (right - _LEFT), 1)

    def y_at(value: float) -> float:
        return round(bottom - (value - y_low) / (y_high - y_low) * (bottom - _TOP), 1)

    def curve(drawn: Series) -> dict[str, Any]:
        points = [(x_at(p.x), y_at(p.y)) for p in drawn.points]
        upper = [(x_at(p.x), y_at(p.high)) for p in drawn.points if p.low is not None and p.high is not None]
        lower = [(x_at(p.x), y_at(p.low)) for p in reversed(drawn.points) if p.low is not None and p.high is not None]
        return {
            "name": drawn.name,
            "colour": drawn.colour,
            "level": points[0][1] if drawn.is_level else None,
            "band": _path([*upper, *lower]) if len(upper) == len(points) else "",
            "line": _path(points),
            "dots": points if len(points) <= _MOST_DOTS else [],
        }

    return {
        "title": title,
        "x_label": x_label,
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": right,
        "bottom": bottom,
        "y_ticks": [(y_at(tick), tick_label(tick)) for tick in ticks(y_low, y_high, 4)],
        "x_ticks": [(x_at(tick), tick_label(tick)) for tick in ticks(x_low, x_high, 4)],
        "curves": [curve(s) for s in series],
    }


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x} {y}" for x, y in points)


def interval_strip(scores: Sequence[tuple[int, Point]], *, no_skill: float | None) -> dict[str, Any]:
    """Scores of models on one line each, with their intervals, and where no skill would be, as the macro `strip` of `charts.html` draws them.

    Args:
        scores: colour and score; x is not used.
    """
    ends = [v for _, p in scores for v in (p.y, p.low, p.high) if v is not None] + ([] if no_skill is None else [no_skill])
    low, high = padded(min(ends), max(ends))
    width, row = 170, 11

    def x_at(value: float) -> float:
        return round(4 + (value - low) / (high - low) * (width - 8), 1)

    rows = [
        {
            "colour": colour,
            "x": x_at(point.y),
            "y": 2 + row * (number + 0.5),
            "ends": None if point.low is None or point.high is None else (x_at(point.low), x_at(point.high)),
        }
        for number, (colour, point) in enumerate(scores)
    ]
    return {"width": width, "height": row * len(scores) + 4, "no_skill": None if no_skill is None else x_at(no_skill), "rows": rows}


def padded(low: float, high: float) -> tuple[float, float]:
    """A range a little wider than the data, never empty."""
    room = 0.07 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def ticks(low: float, high: float, desired: int) -> list[float]:
    """About as many round numbers as wanted between two."""
    raw = (high - low) / desired
    size = 10 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_label(value: float) -> str:
    """A short number: thousands, millions and billions by letter."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


_MARKED_POINTS = 40  # a line of more points has no markers


@dataclass(frozen=True)
class Line:
    """One line of a panel.

    Attributes:
        series: decides the colour; lines of one series look alike in all panels.
        dashed: a second line of the series, or a level.
        is_level: one value for all x.
    """

    name: str
    series: int
    points: tuple[Point, ...]
    dashed: bool = False
    is_level: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        x_names: of the places 0, 1, ... where these are not numbers of anything.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    x_names: tuple[str, ...] = ()


def draw(panels: Sequence[Panel], palette: Palette, *, columns: int = 2) -> Figure:
    """Panels side by side, at most so many in a row, one key for all below them."""
    from matplotlib import pyplot as plt

    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.2 * columns + 0.6, 3.5 * rows + 0.7), squeeze=False, layout="constrained")
    handles: dict[str, Any] = {}
    for number, place in enumerate(axes.flat):
        if number >= len(panels):
            place.set_visible(False)
            continue
        handles |= _draw_panel(place, panels[number], palette)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def _draw_panel(place: Any, panel: Panel, palette: Palette) -> Mapping[str, Any]:
    from matplotlib.ticker import FuncFormatter, NullLocator

    handles = {}
    for line in panel.lines:
        colour = palette.series[line.series % len(palette.series)]
        if line.is_level:
            handles[line.name] = place.axhline(line.points[0].y, color=colour, linewidth=1.2, linestyle=(0, (5, 4)), zorder=1)
            continue
        xs, ys = [p.x for p in line.points], [p.y for p in line.points]
        if all(p.low is not None and p.high is not None for p in line.points):
            place.fill_between(xs, [p.low for p in line.points], [p.high for p in line.points], color=colour, alpha=0.16, linewidth=0)
        marker = ("x" if line.dashed else MARKERS[line.series % len(MARKERS)]) if len(xs) <= _MARKED_POINTS else None
        style = (0, (3, 2)) if line.dashed else "-"
        (handles[line.name],) = place.plot(xs, ys, color=colour, linewidth=1.7, linestyle=style, marker=marker, markersize=5)
    place.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        place.set_xscale("log")
        place.set_xticks(sorted({p.x for line in panel.lines if not line.is_level for p in line.points}))
        place.xaxis.set_minor_locator(NullLocator())
    if panel.x_names:
        place.set_xticks(range(len(panel.x_names)), panel.x_names)
    else:
        place.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short_number(x)))
    place.grid(axis="y")
    return handles


def short_number(value: float) -> str:
    """A number of steps or tokens as axes have it: 1,500, 20K, 1.5M, 12B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "K")):
        if abs(value) >= size:
            scale = 1e3 if letter == "K" else size
            return f"{value / scale:.3g}{letter}"
    return f"{value:,.5g}"
