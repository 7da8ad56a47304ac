"""The tables and the page of what was measured."""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.whole.results import Change, Figure, Results
from common.html_page import html_figure, html_page, html_table
from common.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from common.figure_style import Palette

HEADER = ("", "by", "CPU s by ours", "s by ours", "CPU s", "lowest, highest", "s", "lowest, highest", "MiB")
_CHANGE_HEADER = ("", "before", "now", "now by before", "")
# The sections of the tables, by what the names of their cases begin with.
SECTIONS = {
    "Start": ("--help",),
    "Text": ("collect", "clean", "dedup", "train_tokenizer", "mixture", "to_megatron"),
    "Checkpoints": ("transfer", "hf_to_nemo", "nemo_to_hf", "from_gguf", "verify"),
    "Training": ("plan", "rehearse", "slurm", "train,", "a save"),
    "Evaluation": ("harness",),
}
_STYLE = """body { max-width: 80rem; }
th, td { padding-left: 1.2rem; }
td:first-of-type { text-align: left; }
tr:has(.slower) > * { color: #c22727; font-weight: 600; }
@media (prefers-color-scheme: dark) { tr:has(.slower) > * { color: #ff8078; } }
"""
_LEAST = 0.001  # of a drawn ratio: a stop that is the difference of two steps may be below zero, where a logarithm has no place
_LIMITS = (0.1, 10.0)  # that every drawing shows


def rows_of(results: Results, cases: Sequence[str] | None = None) -> list[tuple[str, ...]]:
    """A row for each contender: median and spread of processor seconds and of those on the clock, peak, and how often ours fits into each."""
    rows = []
    for case in results.cases if cases is None else cases:
        first, *others = results.of_case(case)
        rows += [_row(figure, first) for figure in (first, *others)]
    return rows


def _row(figure: Figure, first: Figure) -> tuple[str, ...]:
    """Ratios are of the case's first contender, which is ours unless ours failed."""
    return (
        f"{figure.case} ({figure.amount:,.3g} {figure.unit})" if figure is first else "",
        figure.name,
        *(_told(ratio) for ratio in _ratios(figure, first)),
        *_spread(figure.cpu_seconds),
        *_spread(figure.seconds),
        f"{figure.peak_bytes / 2**20:,.0f}",
    )


def _spread(values: Sequence[float]) -> tuple[str, str]:
    if not values:
        return "", ""
    return f"{statistics.median(values):.2f}", f"{min(values):.2f}, {max(values):.2f}"


def _ratios(figure: Figure, first: Figure) -> tuple[float | None, float | None]:
    """Processor seconds and seconds by those of ours; None of ours itself, where ours failed, and where none was measured."""
    if figure is first or first.role != "ours":
        return None, None
    cpu = figure.median_cpu / first.median_cpu if figure.median_cpu is not None and first.median_cpu else None
    return cpu, figure.median_seconds / first.median_seconds


def _told(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"


def state(results: Results) -> str:
    """Commit, machine, and how busy it was."""
    load = results.load or (0.0,)
    busy = (
        "others were at work, so read processor seconds"
        if statistics.median(load) > results.cores
        else "nothing else wanted a core for long"
    )
    rounds = max((len(figure.seconds) for figure in results.figures), default=0)
    return (
        f"Commit {results.commit or 'unknown'}; {results.machine}, {results.cores} cores; up to {rounds} rounds; load {min(load):.1f} to {max(load):.1f},"
        f" median {statistics.median(load):.1f}, the measured process among it: {busy}."
    )


def remarks(results: Results) -> list[str]:
    """What differs between contenders, and what was not measured."""
    differences = [f"{figure.case}, {figure.name}: {figure.remark}." for figure in results.figures if figure.remark]
    return [*differences, *(f"{what}: {why}." for what, why in results.missing.items())]


def markdown(results: Results) -> str:
    """Table and remarks for a terminal."""
    table = markdown_table(HEADER, rows_of(results), text_columns=2)
    return "\n".join([state(results), "", table, "", *(f"- {remark}" for remark in remarks(results))])


def documentation(results: Results) -> str:
    """The part of docs/benchmarks.md that a run fills: how each stage compares in a line, then all figures, section by section."""
    parts = [state(results), markdown_table(GLANCE_HEADER, list(glance_rows(results)), text_columns=1)]
    for title, cases in sections(results):
        parts += [f"### {title}", markdown_table(HEADER, rows_of(results, cases), text_columns=2)]
    parts.append("\n".join(f"- {remark}" for remark in remarks(results)))
    return "\n\n".join(parts)


GLANCE_HEADER = ("", "CPU s", "s", "MiB", "peers, CPU s by ours", "peers, s by ours", "limits, CPU s by ours", "limits, s by ours")


def glance_rows(results: Results) -> Iterator[tuple[str, ...]]:
    """A row for each case."""
    for case in results.cases:
        first, *others = results.of_case(case)
        if first.role != "ours":
            continue
        told = [
            ", ".join(f"{other.name} {ratio}" for other in others if other.role in roles and (ratio := _told(_ratios(other, first)[which])))
            for roles in (("peer", "ours"), ("limit",))
            for which in (0, 1)
        ]
        cpu = "" if first.median_cpu is None else f"{first.median_cpu:.2f}"
        yield case, cpu, f"{first.median_seconds:.2f}", f"{first.peak_bytes / 2**20:,.0f}", *told


def sections(results: Results) -> Iterator[tuple[str, list[str]]]:
    """Titles with the cases below them; cases that none claims come last."""
    left = list(results.cases)
    for title, beginnings in SECTIONS.items():
        if cases := [case for case in left if case.startswith(beginnings)]:
            yield title, cases
            left = [case for case in left if case not in cases]
    if left:
        yield "Others", left


def put_into(path: Path, program: str, tables: str) -> None:
    """Replace what a page of the documentation holds between the marks of a program.

    Raises:
        ValueError: if there are no such marks.
    """
    begin, end = f"<!-- tables of {program} -->\n", f"<!-- end of {program} -->\n"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no lines {begin.strip()} and {end.strip()}; put them where the tables belong")
    path.write_text(f"{before}{begin}\n{tables}\n\n{end}{after}", encoding="utf-8")


def change_rows(found: Sequence[Change]) -> list[tuple[str, ...]]:
    """A row for each case that two commits have."""
    return [
        (
            change.case,
            f"{statistics.median(change.before.costs):.2f}",
            f"{statistics.median(change.after.costs):.2f}",
            f"{change.ratio:.2f}",
            "slower" if change.is_slower else "",
        )
        for change in found
    ]


def changes_markdown(found: Sequence[Change]) -> str:
    """How two commits compare, for a terminal."""
    return markdown_table(_CHANGE_HEADER, change_rows(found))


def write_page(results: Results, compared: Sequence[Change], path: Path) -> None:
    """All of it as one HTML page."""
    parts = [f"<p>{html.escape(state(results))}</p>"]
    if compared:
        table = html_table(_CHANGE_HEADER, change_rows(compared)).replace("<td>slower</td>", '<td class="slower">slower</td>')
        parts += ["<h2>Against the other commit</h2>", f'<div class="scroll">{table}</div>']
    caption = (
        "Processor seconds of others by ours (of saves those on the clock), logarithmic: right of the line they take longer. Lines are the lowest and highest of"
        " theirs by our median. Limits are what no way can do without."
    )
    for title, cases in sections(results):
        parts.append(f"<h2>{title}</h2>")
        if any(len(results.of_case(case)) > 1 for case in cases):
            alternative = f"{title}: processor seconds of peers and limits as multiples of this project's"
            parts.append(html_figure(*_drawings(results, cases), alternative=alternative, caption=caption))
            caption = "As above."
        parts.append(f'<div class="scroll">{html_table(HEADER, rows_of(results, cases))}</div>')
    parts += ['<div class="notes">', *(f"<p>{html.escape(remark)}</p>" for remark in remarks(results)), "</div>"]
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(html_page("What commands cost, beside others and limits", "\n".join(parts), style=_STYLE), encoding="utf-8")
    partial.replace(path)


def _drawings(results: Results, cases: Sequence[str]) -> tuple[bytes, bytes]:
    from common.figure_style import drawn

    return drawn(lambda palette: _draw(results, cases, palette), None)


def _draw(results: Results, cases: Sequence[str], palette: Palette) -> Drawing:
    """A line for each other contender, at how often our processor time fits into its."""
    from matplotlib import pyplot as plt

    bars = []
    for case in cases:
        ours, *others = results.of_case(case)
        unit = statistics.median(ours.costs)
        bars += [
            (f"{case}: {other.name}", [max(cost / unit, _LEAST) for cost in other.costs or other.seconds], other.role) for other in others
        ]
    figure, axes = plt.subplots(figsize=(11, 0.9 + 0.26 * max(1, len(bars))), layout="constrained")
    colours = {"peer": palette.series[0], "limit": palette.series[1], "ours": palette.muted}
    markers = {"peer": "o", "limit": "d", "ours": "s"}
    for place, (_, costs, role) in enumerate(bars):
        ratio = statistics.median(costs)
        axes.plot([1, ratio], [place, place], color=palette.rule, linewidth=2, zorder=1)
        axes.plot([min(costs), max(costs)], [place, place], color=colours[role], linewidth=2, zorder=2)
        axes.plot(ratio, place, markers[role], color=colours[role], label=role, zorder=3)
        right = ratio >= 1
        at = (max(costs) if right else min(costs), place)
        offset = (8 if right else -8, 0)
        axes.annotate(_told(ratio), at, xytext=offset, textcoords="offset points", va="center", ha="left" if right else "right")
    every = [cost for _, costs, _ in bars for cost in costs]
    axes.set_xscale("log")
    axes.set_xlim(min(_LIMITS[0], min(every) / 2), max(_LIMITS[1], max(every) * 2))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.axvline(1, color=palette.muted, linewidth=1)
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlabel("their seconds by ours")
    handles, roles = axes.get_legend_handles_labels()
    shown = dict(zip(roles, handles, strict=True))
    names = {"ours": "ours otherwise"}
    figure.legend([*shown.values()], [names.get(role, role) for role in shown], loc="outside upper right", ncols=3, frameon=False)
    return figure
