"""The report as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.pages import rendered
from eval.reporting.across_languages import NOTE as ACROSS_NOTE
from eval.reporting.across_languages import tables as across_tables
from eval.reporting.charts import NUM_COLOURS, Point, Series, curve_panel, interval_strip
from eval.reporting.generation import generation_note, generation_rows
from eval.reporting.languages import NOTE as LANGUAGES_NOTE
from eval.reporting.languages import language_rows
from eval.reporting.runs import Report
from eval.reporting.scores import Line, Test, difference_texts, marked, validity_rows
from eval.reporting.sections import efficiency_rows, notes, retention_rows, x_axes
from eval.reporting.suites import TEXTS, by_suite, glance_rows, place
from eval.reporting.warnings import warnings

_MANY_TASKS, _MANY_ROWS = 16, 48


def report_page(
    report: Report, all_lines: Sequence[Line], tests: Sequence[Test], *, title: str, tokens_per_step: int | None, items_link: bool
) -> str:
    """The whole page, without the items.

    Args:
        items_link: whether there is a page of single items to link to.
    """
    names = [model.name for model in report.models]
    along = any(len(run.checkpoints) > 1 for run in report.runs)
    return rendered(
        "report.html",
        title=title,
        most_rows=_MANY_ROWS,
        summary=_summary(report),
        warnings=warnings(report),
        glance=_glance(report, all_lines, tests),
        models=names,
        keyed=[f"{names[0]} (baseline)", *names[1:]] if len(names) > 1 else names,
        suites=_suites(report, all_lines, tests),
        tests=tests_rows(tests) if tests else None,
        items_link=items_link,
        sections=[
            ("By language", language_rows(report, all_lines), LANGUAGES_NOTE),
            ("Validity of the answers", validity_rows(report), _VALIDITY_NOTE),
            ("Text: bits per byte, and what the tokenizer costs", efficiency_rows(report), _TEXT_NOTE),
            ("Speed of generation beside accuracy and tokenizer", generation_rows(report, all_lines), generation_note(report)),
            ("English beside the target language", retention_rows(report, tests), _RETENTION_NOTE),
        ],
        across=across_tables(report),
        across_note=ACROSS_NOTE,
        runs=[run.name for run in report.runs],
        curves=_curves(report, all_lines, tokens_per_step) if along else None,
        notes=notes(report),
    )


_VALIDITY_NOTE = (
    "Percent of items. Strict: an invalid answer is a wrong one. Valid only is what the GaMS paper prints; with many invalid answers it is a"
    " choice of easy items and can put the worse model first. Cut: reached the last token allowed, or lost the beginning of its prompt."
)
_TEXT_NOTE = (
    "Perplexity per token is comparable only between models with the same tokenizer. Fertility is tokens per word between spaces; speed is that of scoring on the"
    " machine of the evaluation."
)
_RETENTION_NOTE = (
    "Difference to the baseline with its 95 % interval, on the same items; of bits per byte less is better."
    " An asterisk: sure over all lines and models (Holm)."
)


def _summary(report: Report) -> str:
    checkpoints = sum(len(run.checkpoints) for run in report.runs)
    counts = [(len(report.runs), "model"), (len(report.tasks), "task"), (len(report.texts), "held-out text")]
    if checkpoints > len(report.runs):
        counts.insert(1, (checkpoints, "checkpoint"))
    parts = [f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts if count]
    baseline = f"; the baseline is {report.models[0].name}" if len(report.runs) > 1 else ""
    return f"{', '.join(parts)}. Tables show the last checkpoint of every training{baseline}."


def _glance(report: Report, all_lines: Sequence[Line], tests: Sequence[Test]) -> dict[str, Any] | None:
    """Every suite in one line, where there is more than one table of them."""
    header, rows = glance_rows(report, all_lines, tests)
    if len(rows) < 2:
        return None
    note = "Mean of the scores of a suite's tasks"
    if tests:
        note += "; ▲ and ▼: how many of them are better and worse than the baseline, sure over all lines and models (paired tests, Holm)"
    return {"table": (header, rows), "note": note}


def _suites(report: Report, all_lines: Sequence[Line], tests: Sequence[Test]) -> list[dict[str, Any]]:
    """A table of each suite; where there are many tasks, they are folded away below their names."""
    marks = marked(tests)
    known = [line for line in all_lines if any(line.score(model) is not None for model in report.models)]
    return [
        {
            "title": suite.title,
            "open": suite is TEXTS or len(report.tasks) <= _MANY_TASKS,
            "rows": [
                {**_scores_row(report, line, marks), "group": _group(line) if before is None or before.source != line.source else None}
                for before, line in zip([None, *lines], lines)
            ],
        }
        for suite, lines in by_suite(known).items()
    ]


def _group(line: Line) -> dict[str, str] | None:
    return None if line.is_text else {"title": place(line)[1], "task": line.source}


def _scores_row(report: Report, line: Line, marks: Mapping[tuple[str, str, Path], Test]) -> dict[str, Any]:
    scores = [line.score(model) for model in report.models]
    known = [(model, score) for model, score in zip(report.models, scores) if score is not None]
    higher = known[0][1].higher_is_better
    counts: dict[str, list[str]] = {}  # valid answers are as many as a model gave
    for model, score in known:
        counts.setdefault(score.count_text(), []).append(model.name)
    best = (max if higher else min)(score.value for _, score in known)
    cells = [
        None
        if score is None
        else {
            "value": score.value_text(),
            "interval": score.interval_text(),
            "best": score.value == best and len(known) > 1,
            "mark": "" if (test := marks.get((line.source, line.metric, model.path))) is None else "▲" if test.better else "▼",
        }
        for model, score in zip(report.models, scores)
    ]
    no_skill = line.no_skill(known[0][0])
    points = [(n % NUM_COLOURS, Point(0, s.value, s.low, s.high)) for n, s in enumerate(scores) if s is not None]
    return {
        "name": line.label.removeprefix(f"{line.source}, ") + ("" if higher else " ↓"),
        "told": f"n = {named_counts(counts)}" + ("" if no_skill is None else f"; {no_skill[0]}: {no_skill[1]:.1f}"),
        "cells": cells,
        "strip": interval_strip(points, no_skill=None if no_skill is None else no_skill[1]),
    }


def named_counts(counts: Mapping[str, Sequence[str]]) -> str:
    """One number of items, or several with the models that they are of."""
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{count} ({', '.join(names)})" for count, names in counts.items())


def tests_rows(tests: Sequence[Test]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the paired tests."""
    header = ["score and model", "difference", "95 % interval", "better on", "worse on", "of", "p", "p, Holm", ""]
    rows = []
    for test in tests:
        d = test.difference
        items = str(d.n) if d.units == d.n else f"{d.n} in {d.units}"
        numbers = [*difference_texts(test), str(test.better_on), str(test.worse_on), items]
        rows.append([f"{test.label}: {test.model.name}", *numbers, _p_text(d.p_value), _p_text(test.adjusted_p_value), test.verdict])
    return header, rows


def _p_text(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _has_scores(report: Report, line: Line) -> bool:
    return any(line.score(model) is not None for run in report.runs for model in run.checkpoints)


def _curves(report: Report, all_lines: Sequence[Line], tokens_per_step: int | None) -> dict[str, list[dict[str, Any]]]:
    """By what they are drawn against: panels, in groups where there are many."""
    drawn_lines = [line for line in all_lines if line.headline]
    drawn_lines += [line for task in report.tasks if _has_scores(report, line := Line(task, "invalid", False, False))]
    found = {}
    for label, position in x_axes(report, tokens_per_step).items():
        panels: dict[str, list[dict[str, Any]]] = {}
        for line in drawn_lines:
            series = []
            for colour, run in enumerate(report.runs):
                scored = [(model, score) for model in run.checkpoints if (score := line.score(model)) is not None]
                points = tuple(Point(position(model), score.value, score.low, score.high) for model, score in scored)
                if points:
                    series.append(Series(run.name, colour % NUM_COLOURS, points, is_level=run.last.step is None))
            if any(not s.is_level for s in series):
                panels.setdefault(place(line)[0].title, []).append(curve_panel(line.label, series, x_label=label))
        if len(report.tasks) > _MANY_TASKS:
            found[label] = [{"title": title, "open": title == TEXTS.title, "charts": charts} for title, charts in panels.items()]
        else:
            found[label] = [{"title": "", "charts": [chart for charts in panels.values() for chart in charts]}]
    return found
