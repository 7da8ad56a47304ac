"""Small drawings inside the page: curves with their intervals, and scores on a line; colours follow the page's light and dark."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.figure_style import DARK, LIGHT

NUM_COLOURS = len(LIGHT.series)
STYLE = "\n".join(
    [
        ":root { " + " ".join(f"--s{i}: {colour};" for i, colour in enumerate(LIGHT.series)) + " }",
        "@media (prefers-color-scheme: dark) { :root { " + " ".join(f"--s{i}: {c};" for i, c in enumerate(DARK.series)) + " } }",
        *(f".c{i} {{ --colour: var(--s{i}); }}" for i in range(NUM_COLOURS)),
        "svg text { font: 11px system-ui, sans-serif; fill: var(--muted); }",
        "svg .frame { stroke: var(--rule); fill: none; }",
        "svg .line { stroke: var(--colour); stroke-width: 1.8; fill: none; }",
        "svg .band { fill: var(--colour); opacity: .16; }",
        "svg .dot { fill: var(--colour); stroke: var(--ground); stroke-width: 1; }",
        "svg .whisker { stroke: var(--colour); stroke-width: 1.6; }",
        "svg .level { stroke: var(--colour); stroke-dasharray: 4 3; }",
        "svg .mark { stroke: var(--ink); stroke-width: 1.4; }",
        ".panels { display: flex; flex-wrap: wrap; gap: 1rem 1.4rem; margin-top: .8rem; }",
        ".panels figure { margin: 0; width: 18.4rem; } .panels svg { width: 100%; height: auto; }",
        ".panels figcaption { color: var(--ink); font-weight: 600; font-size: .85rem; margin: 0 0 .15rem; }",
        ".key { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; margin-top: .6rem; }",
        ".key span::before { content: ''; display: inline-block; width: .7em; height: .7em; border-radius: 50%;"
        " background: var(--colour); margin-right: .4em; }",
    ]
)
_WIDTH, _HEIGHT = 300, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 16, 8, 30


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


def curve_panel(title: str, series: Sequence[Series], *, x_label: str) -> str:
    """One score against training."""
    curves = [s for s in series if not s.is_level]
    xs = [point.x for s in curves for point in s.points]
    ends = [v for s in series for p in s.points for v in (p.y, p.low, p.high) if v is not None]
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1)
    y_low, y_high = padded(min(ends), max(ends))

    def x_at(value: float) -> float:
        return _LEFT + (value - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y_at(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tick in ticks(y_low, y_high, 4):
        y = y_at(tick)
        parts.append(f'<path class="frame" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{tick_label(tick)}</text>')
    for tick in ticks(x_low, x_high, 4):
        parts.append(f'<text x="{x_at(tick):.1f}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle">{tick_label(tick)}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 3}" text-anchor="middle">{html.escape(x_label)}</text>')
    for s in series:
        parts.append(_curve(s, x_at, y_at))
    drawing = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{drawing}</figure>"


def _curve(series: Series, x_at: object, y_at: object) -> str:
    assert callable(x_at) and callable(y_at)
    points = series.points
    if series.is_level:
        y = y_at(points[0].y)
        return (
            f'<path class="level c{series.colour}" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"><title>{html.escape(series.name)}</title></path>'
        )
    line = "L".join(f"{x_at(p.x):.1f} {y_at(p.y):.1f}" for p in points)
    parts = []
    if all(p.low is not None and p.high is not None for p in points):
        upper = "L".join(f"{x_at(p.x):.1f} {y_at(p.high):.1f}" for p in points)
        lower = "L".join(f"{x_at(p.x):.1f} {y_at(p.low):.1f}" for p in reversed(points))
        parts.append(f'<path class="band" d="M{upper}L{lower}Z"/>')
    parts.append(f'<path class="line" d="M{line}"/>')
    if len(points) <= 30:
        parts += [f'<circle class="dot" cx="{x_at(p.x):.1f}" cy="{y_at(p.y):.1f}" r="3"/>' for p in points]
    return f'<g class="c{series.colour}"><title>{html.escape(series.name)}</title>{"".join(parts)}</g>'


def interval_strip(scores: Sequence[tuple[int, Point]], *, no_skill: float | None) -> str:
    """Scores of models on one line each, with their intervals; an upright mark where no skill would be.

    Args:
        scores: colour and score; x is not used.
    """
    ends = [v for _, p in scores for v in (p.y, p.low, p.high) if v is not None] + ([] if no_skill is None else [no_skill])
    low, high = padded(min(ends), max(ends))
    width, row = 170, 11
    height = row * len(scores) + 4

    def x_at(value: float) -> float:
        return 4 + (value - low) / (high - low) * (width - 8)

    parts = [] if no_skill is None else [f'<path class="mark" d="M{x_at(no_skill):.1f} 1V{height - 1}"/>']
    for number, (colour, point) in enumerate(scores):
        y = 2 + row * (number + 0.5)
        whisker = ""
        if point.low is not None and point.high is not None:
            whisker = f'<path class="whisker" d="M{x_at(point.low):.1f} {y}H{x_at(point.high):.1f}"/>'
        parts.append(f'<g class="c{colour}">{whisker}<circle class="dot" cx="{x_at(point.y):.1f}" cy="{y}" r="3.6"/></g>')
    return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">{"".join(parts)}</svg>'


def padded(low: float, high: float) -> tuple[float, float]:
    """A range a little wider than the data, never empty."""
    room = 0.07 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """About as many round numbers as wanted between two."""
    raw = (high - low) / wanted
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
