"""Panels of lines with bands, as PNG and SVG: what the papers draw over steps, tokens, new tokens and pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.figure_style import MARKERS, Palette
from eval.reporting.charts import Point

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        x_names: of the places 0, 1, ... where these are no numbers of anything.
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
