"""The report as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.html_page import html_page, html_table
from eval.reporting.across_languages import NOTE as ACROSS_NOTE
from eval.reporting.across_languages import tables as across_tables
from eval.reporting.charts import NUM_COLOURS, STYLE, Point, Series, curve_panel, interval_strip
from eval.reporting.generation import generation_note, generation_rows
from eval.reporting.languages import NOTE as LANGUAGES_NOTE
from eval.reporting.languages import language_rows
from eval.reporting.runs import Report
from eval.reporting.scores import Line, Score, Test, difference_texts, marked, validity_rows
from eval.reporting.sections import efficiency_rows, notes, retention_rows, x_axes
from eval.reporting.suites import TEXTS, by_suite, glance_rows, place
from eval.reporting.warnings import warnings

_MANY_TASKS, _MANY_ROWS = 16, 48
_STYLE = (
    STYLE
    + """
body { max-width: 76rem; }
.scores td, .scores th { padding-left: 1.4rem; vertical-align: middle; line-height: 1.3; }
.scores th:first-child { padding-left: 0; }
.scores .best { font-weight: 700; }
.scores small, .scores .n { color: var(--muted); font-size: .8rem; font-weight: 400; display: block; }
.scores .group small { display: inline; font-family: ui-monospace, monospace; }
summary { margin-top: 1rem; }
.scores .group th { color: var(--muted); font-size: .8rem; text-transform: none; padding-top: .9rem; border-bottom-color: var(--muted); }
.sure { color: var(--accent); font-weight: 700; } .worse { color: var(--warn); font-weight: 700; }
@media (max-width: 40rem) { th, td, .scores td, .scores th { padding-left: 1rem; } th:first-child { white-space: normal; min-width: 8rem; } }
@media print { details::details-content { content-visibility: visible; block-size: auto; } }
.banner { border-left: 4px solid var(--warn); padding: .5rem .9rem; margin: 1rem 0; max-width: none; }
"""
)


def report_page(
    report: Report, all_lines: Sequence[Line], tests: Sequence[Test], *, title: str, tokens_per_step: int | None, items_link: bool
) -> str:
    """The whole page, without the items.

    Args:
        items_link: whether there is a page of single items to link to.
    """
    models = report.models
    key = "".join(
        f'<span class="c{n % NUM_COLOURS}">{html.escape(model.name)}{" (baseline)" if n == 0 and len(models) > 1 else ""}</span>'
        for n, model in enumerate(models)
    )
    sections = [
        f"<p>{html.escape(_summary(report))}</p>",
        *(f'<p class="banner">{html.escape(warning)}</p>' for warning in warnings(report)),
        *_glance(report, all_lines, tests),
        f'<h2>Scores</h2>\n<div class="key">{key}</div>',
        *_scores_tables(report, all_lines, tests),
        '<p class="notes">95 % intervals in brackets. Bold: the best figure of a line. ↓: lower is better.'
        + (
            " ▲ better and ▼ worse than the baseline, sure over all lines and models of the page (paired tests, Holm); what was not tested has no mark."
            if len(models) > 1
            else ""
        )
        + " The upright mark is what needs no skill: always the most frequent answer, or a copy of the source.</p>",
    ]
    if tests:
        sections += ["<h2>Against the baseline, item by item</h2>", _table(*tests_rows(tests))]
    if items_link:
        sections.append('<p><a href="items.html">Wins and losses, with questions and answers</a></p>')
    for heading, (header, rows), note in (
        ("By language", language_rows(report, all_lines), LANGUAGES_NOTE),
        ("What became of the answers", validity_rows(report), _VALIDITY_NOTE),
        ("Text: bits per byte, and what the tokenizer costs", efficiency_rows(report), _TEXT_NOTE),
        ("Speed of generation beside accuracy and tokenizer", generation_rows(report, all_lines), html.escape(generation_note(report))),
        ("English beside the target language", retention_rows(report, tests), _RETENTION_NOTE),
    ):
        if rows:
            sections += [f"<h2>{heading}</h2>", _table(header, rows), f'<p class="notes">{note}</p>']
    if found := across_tables(report):
        sections.append("<h2>Across languages</h2>")
        sections += [f"<h3>{html.escape(heading)}</h3>\n{_table(header, rows)}" for heading, header, rows in found]
        sections.append(f'<p class="notes">{html.escape(ACROSS_NOTE)}</p>')
    if any(len(run.checkpoints) > 1 for run in report.runs):
        sections.append(_curves(report, all_lines, tokens_per_step))
    sections += [
        "<h2>How it was measured</h2>",
        '<div class="notes">',
        *(f"<p>{html.escape(note)}</p>" for note in notes(report)),
        "</div>",
    ]
    return html_page(title, "\n".join(sections), style=_STYLE)


_VALIDITY_NOTE = (
    "Percent of items. Strict: an invalid answer is a wrong one. Valid only is what the GaMS paper prints; with many invalid answers it is a"
    " choice of easy items and can put the worse model first. Cut: reached the last token allowed, or lost the beginning of its prompt."
)
_TEXT_NOTE = (
    "Perplexity per token compares models of the same tokenizer only. Fertility is tokens per word between spaces; speed is scoring on the"
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


def _glance(report: Report, all_lines: Sequence[Line], tests: Sequence[Test]) -> list[str]:
    """Every suite in one line, where there is more than one table of them."""
    header, rows = glance_rows(report, all_lines, tests)
    if len(rows) < 2:
        return []
    note = "Mean of the scores of a suite's tasks"
    if tests:
        note += "; ▲ and ▼: how many of them are better and worse than the baseline, sure over all lines and models (paired tests, Holm)"
    return ["<h2>At a glance</h2>", _scroll(html_table(header, rows)), f'<p class="notes">{note}.</p>']


def _scores_tables(report: Report, all_lines: Sequence[Line], tests: Sequence[Test]) -> list[str]:
    """A table of each suite; where there are many tasks, they are folded away below their names."""
    marks = marked(tests)
    known = [line for line in all_lines if any(line.score(model) is not None for model in report.models)]
    opened = " open" if len(report.tasks) <= _MANY_TASKS else ""
    return [
        f"<details{' open' if suite is TEXTS else opened}><summary>{html.escape(suite.title)}</summary>\n"
        f"{_scores_table(report, lines, marks)}\n</details>"
        for suite, lines in by_suite(known).items()
    ]


def _scores_table(report: Report, lines: Sequence[Line], marks: Mapping[tuple[str, str, Path], Test]) -> str:
    models = report.models
    head = "".join(f'<th scope="col">{html.escape(model.name)}</th>' for model in models)
    body, group = [], ""
    for line in lines:
        if not line.is_text and line.source != group:
            group = line.source
            title = html.escape(place(line)[1])
            name = "" if title == line.source else f" <small>{html.escape(line.source)}</small>"
            body.append(f'<tr class="group"><th scope="rowgroup" colspan="{len(models) + 2}">{title}{name}</th></tr>')
        body.append(_scores_row(report, line, [line.score(model) for model in models], marks))
    return _scroll(
        f'<table class="scores">\n<caption class="notes">Scores with 95 % intervals</caption>\n<thead><tr><th scope="col">score</th>{head}<td></td></tr></thead>\n<tbody>\n{"".join(body)}</tbody></table>'
    )


def _scores_row(report: Report, line: Line, scores: Sequence[Score | None], marks: Mapping[tuple[str, str, Path], Test]) -> str:
    known = [score for score in scores if score is not None]
    counts: dict[str, list[str]] = {}  # valid answers are as many as a model gave
    for model, score in zip(report.models, scores):
        if score is not None:
            counts.setdefault(score.count_text(), []).append(model.name)
    best = (max if known[0].higher_is_better else min)(score.value for score in known)
    cells = []
    for model, score in zip(report.models, scores):
        if score is None:
            cells.append("<td>–</td>")
            continue
        weight = ' class="best"' if score.value == best and len(known) > 1 else ""
        test = marks.get((line.source, line.metric, model.path))
        mark = "" if test is None else _mark(test)
        cells.append(f"<td{weight}>{score.value_text()}{mark}<small>{score.interval_text()}</small></td>")
    evaluated = next(model for model, score in zip(report.models, scores) if score is not None)
    no_skill = line.no_skill(evaluated)
    points = [(n % NUM_COLOURS, Point(0, s.value, s.low, s.high)) for n, s in enumerate(scores) if s is not None]
    strip = interval_strip(points, no_skill=None if no_skill is None else no_skill[1])
    name = line.label.removeprefix(f"{line.source}, ") + ("" if known[0].higher_is_better else " ↓")
    told = f"n = {named_counts(counts)}" + ("" if no_skill is None else f"; {no_skill[0]}: {no_skill[1]:.1f}")
    return f'<tr><th scope="row">{html.escape(name)}<span class="n">{html.escape(told)}</span></th>{"".join(cells)}<td>{strip}</td></tr>\n'


def named_counts(counts: Mapping[str, Sequence[str]]) -> str:
    """One number of items, or several with the models that they are of."""
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{count} ({', '.join(names)})" for count, names in counts.items())


def _mark(test: Test) -> str:
    return '<span class="sure"> ▲</span>' if test.better else '<span class="worse"> ▼</span>'


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


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways; a long one is folded away below the number of its lines."""
    table = _scroll(html_table(header, rows))
    return table if len(rows) <= _MANY_ROWS else f"<details><summary>{len(rows)} lines</summary>\n{table}\n</details>"


def _scroll(table: str) -> str:
    return f'<div class="scroll">\n{table}\n</div>'


def _has_scores(report: Report, line: Line) -> bool:
    return any(line.score(model) is not None for run in report.runs for model in run.checkpoints)


def _curves(report: Report, all_lines: Sequence[Line], tokens_per_step: int | None) -> str:
    sections = ["<h2>Along training</h2>"]
    drawn_lines = [line for line in all_lines if line.headline]
    drawn_lines += [line for task in report.tasks if _has_scores(report, line := Line(task, "invalid", False, False))]
    key = "".join(f'<span class="c{n % NUM_COLOURS}">{html.escape(run.name)}</span>' for n, run in enumerate(report.runs))
    sections.append(f'<div class="key">{key}</div>')
    sections.append('<p class="notes">Shaded: 95 % intervals. Dashed: models that were not trained here.</p>')
    for number, (label, position) in enumerate(x_axes(report, tokens_per_step).items()):
        panels: dict[str, list[str]] = {}
        for line in drawn_lines:
            series = []
            for colour, run in enumerate(report.runs):
                points = []
                for model in run.checkpoints:
                    score = line.score(model)
                    if score is not None:
                        points.append(Point(position(model), score.value, score.low, score.high))
                if points:
                    is_level = run.last.step is None
                    series.append(Series(run.name, colour % NUM_COLOURS, tuple(points), is_level=is_level))
            if any(not s.is_level for s in series):
                panels.setdefault(place(line)[0].title, []).append(curve_panel(line.label, series, x_label=label))
        drawn = _panels(panels, folded=len(report.tasks) > _MANY_TASKS)
        sections.append(drawn if number == 0 else f"<details><summary>Against {html.escape(label)}</summary>{drawn}</details>")
    return "\n".join(sections)


def _panels(panels: dict[str, list[str]], *, folded: bool) -> str:
    if not folded:
        return f'<div class="panels">{"".join(panel for drawn in panels.values() for panel in drawn)}</div>'
    parts = []
    for title, drawn in panels.items():
        opened = " open" if title == TEXTS.title else ""
        parts.append(f'<details{opened}><summary>{html.escape(title)}</summary><div class="panels">{"".join(drawn)}</div></details>')
    return "\n".join(parts)
