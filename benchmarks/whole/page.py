"""The table and the page of what was measured."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.whole.results import Change, Figure, Results
from common.html_page import html_figure, html_page, html_table
from common.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from common.figure_style import Palette

HEADER = ("", "by", "CPU s", "lowest", "highest", "s", "MiB", "amount per CPU s", "CPU time of ours")
_CHANGE_HEADER = ("", "CPU s before", "now", "now by before", "")


def rows_of(results: Results) -> list[tuple[str, ...]]:
    """A row for each contender: median and spread of processor seconds, median on the clock, peak, rate, and how often ours fits into its time."""
    rows = []
    for case in results.cases:
        figures = results.of_case(case)
        ours = next(figure for figure in figures if figure.role == "ours")
        rows += [_row(figure, ours) for figure in figures]
    return rows


def _row(figure: Figure, ours: Figure) -> tuple[str, ...]:
    is_ours = figure is ours
    return (
        figure.case if is_ours else "",
        figure.name,
        f"{figure.median_cpu:.2f}",
        f"{min(figure.cpu_seconds):.2f}",
        f"{max(figure.cpu_seconds):.2f}",
        f"{figure.median_seconds:.2f}",
        f"{figure.peak_bytes / 2**20:,.0f}",
        f"{figure.amount / figure.median_cpu:,.3g} {figure.unit}",
        "" if is_ours else f"{figure.median_cpu / ours.median_cpu:.2f}",
    )


def remarks(results: Results, absent: Sequence[str]) -> list[str]:
    """What differs between contenders, what was not measured, and how busy the machine was."""
    busiest = max(results.load, default=0.0)
    state = "others were at work, so read processor seconds" if busiest > results.cores else "nothing else wanted a core for long"
    load = (
        f"{results.machine}, {results.cores} cores; {busiest:.1f} processes at most wanted to run, the measured ones among them: {state}."
    )
    differences = [f"{figure.case}, {figure.name}: {figure.remark}." for figure in results.figures if figure.remark]
    return [f"Commit {results.commit or 'unknown'}. {load}", *differences, *(f"{sentence}." for sentence in absent)]


def markdown(results: Results, absent: Sequence[str]) -> str:
    """Table and remarks for a terminal and the docs."""
    table = markdown_table(HEADER, rows_of(results), text_columns=2)
    return "\n".join([table, "", *(f"- {remark}" for remark in remarks(results, absent))])


def change_rows(found: Sequence[Change]) -> list[tuple[str, ...]]:
    """A row for each case that two commits have."""
    return [
        (
            change.case,
            f"{change.before.median_cpu:.2f}",
            f"{change.after.median_cpu:.2f}",
            f"{change.ratio:.2f}",
            "slower" if change.is_slower else "",
        )
        for change in found
    ]


def changes_markdown(found: Sequence[Change]) -> str:
    """How two commits compare, for a terminal."""
    return markdown_table(_CHANGE_HEADER, change_rows(found))


def write_page(results: Results, absent: Sequence[str], compared: Sequence[Change], path: Path) -> None:
    """All of it as one HTML page."""
    light, dark = _drawings(results)
    caption = "Processor seconds of others by ours, logarithmic: right of the line they take longer. Limits are what no way can do without."
    parts = [
        html_figure(light, dark, alternative="Processor seconds of peers and limits as multiples of this project's", caption=caption),
        f'<div class="scroll">{html_table(HEADER, rows_of(results))}</div>',
    ]
    if compared:
        parts += ["<h2>Against the commit before</h2>", f'<div class="scroll">{html_table(_CHANGE_HEADER, change_rows(compared))}</div>']
    parts += ['<div class="notes">', *(f"<p>{html.escape(remark)}</p>" for remark in remarks(results, absent)), "</div>"]
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(html_page("What commands cost, beside others and limits", "\n".join(parts)), encoding="utf-8")
    partial.replace(path)


def _drawings(results: Results) -> tuple[bytes, bytes]:
    from common.figure_style import drawn

    return drawn(lambda palette: _draw(results, palette), None)


def _draw(results: Results, palette: Palette) -> Drawing:
    """A line for each other contender, at how often our processor time fits into its."""
    from matplotlib import pyplot as plt

    bars = []
    for case in results.cases:
        ours, *others = results.of_case(case)
        bars += [(f"{case}: {other.name}", other.median_cpu / ours.median_cpu, other.role) for other in others]
    figure, axes = plt.subplots(figsize=(9, 1 + 0.32 * max(1, len(bars))), layout="constrained")
    for place, (_, ratio, role) in enumerate(bars):
        axes.plot([1, ratio], [place, place], color=palette.rule, linewidth=2, zorder=1)
        axes.plot(ratio, place, "o" if role == "peer" else "d", color=palette.series[0 if role == "peer" else 1])
        axes.annotate(
            f"{ratio:.2g}",
            (ratio, place),
            xytext=(8 if ratio >= 1 else -8, 0),
            textcoords="offset points",
            va="center",
            ha="left" if ratio >= 1 else "right",
        )
    axes.axvline(1, color=palette.muted, linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("processor seconds by ours")
    for role, number, marker in (("peer", 0, "o"), ("limit", 1, "d")):
        axes.plot([], [], marker, color=palette.series[number], label=role)
    axes.legend(loc="lower right")
    return figure
