"""The tables of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.whole.results import Change, Figure, Results
from common.tables import markdown_table

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
        *(_ratio_text(ratio) for ratio in _ratios(figure, first)),
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


def _ratio_text(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"


def state(results: Results) -> str:
    """Commit, machine, and how busy it was."""
    load = results.load or (0.0,)
    busy = (
        "others used the machine, so compare CPU seconds" if statistics.median(load) > results.cores else "the machine was otherwise idle"
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
    """The part of docs/results/benchmarks.md that a run fills: how each stage compares in a line, then all figures, section by section."""
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
        row = [
            ", ".join(
                f"{other.name} {ratio}" for other in others if other.role in roles and (ratio := _ratio_text(_ratios(other, first)[which]))
            )
            for roles in (("peer", "ours"), ("limit",))
            for which in (0, 1)
        ]
        cpu = "" if first.median_cpu is None else f"{first.median_cpu:.2f}"
        yield case, cpu, f"{first.median_seconds:.2f}", f"{first.peak_bytes / 2**20:,.0f}", *row


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
