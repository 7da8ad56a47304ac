"""The report's tables for other programs and for papers: CSV, Markdown, LaTeX."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from common.tables import markdown_table, tex, tex_row, tex_table
from eval.reporting.across_languages import NOTE as ACROSS_NOTE
from eval.reporting.across_languages import tables as across_tables
from eval.reporting.gams_tables import gams_tables
from eval.reporting.generation import SOURCE, generation_note, generation_records, generation_rows
from eval.reporting.languages import language_rows
from eval.reporting.page import named_counts, tests_rows
from eval.reporting.runs import Evaluated, Report
from eval.reporting.sava_tables import benchmark_table, generation_table
from eval.reporting.scores import Line, Score, Test, marked, validity_rows
from eval.reporting.sections import efficiency_rows, notes, retention_rows
from eval.reporting.suites import ACROSS_LANGUAGES, GENERATED_SLOVENE, ITA_BENCH, SENTA, Suite, by_suite, glance_rows, mean_score, place
from eval.reporting.warnings import warnings

MULTIPLICITY = (
    "p-values are adjusted by Holm over all scores and models of this report; better, worse and an asterisk say what is sure then."
)


def write_scores(path: Path, report: Report, all_lines: Sequence[Line]) -> None:
    """Every score of every checkpoint in one line."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["run", "checkpoint", "step", "source", "metric", "value", "low", "high", "n", "model_digest", "backend"])
        for run in report.runs:
            for model in run.checkpoints:
                digest, step = model.content["model"]["digest"], "" if model.step is None else model.step
                for line in all_lines:
                    score = line.score(model)
                    if score is not None:
                        backend = model.content["settings"]["backend"]
                        row = [line.source, line.metric, *_numbers(score.value, score.low, score.high), score.n, digest, backend]
                        writer.writerow([run.name, model.name, step, *row])
                for metric, value, low, high, repeats in generation_records(report, model):
                    row = [SOURCE, metric, *_numbers(value, low, high), repeats, digest, report.generation[digest]["conditions"]["backend"]]
                    writer.writerow([run.name, model.name, step, *row])


def _numbers(*values: float | None) -> list[str]:
    return ["" if value is None else repr(value) for value in values]


def scores_rows(report: Report, all_lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: scores with intervals, models in columns."""
    rows = []
    for line in all_lines:
        scores = [line.score(model) for model in report.models]
        known = [score for score in scores if score is not None]
        if known:
            evaluated = next(model for model, score in zip(report.models, scores) if score is not None)
            no_skill = line.no_skill(evaluated)
            plain = "–" if no_skill is None else f"{no_skill[1]:.1f} ({no_skill[0]})"
            counts: dict[str, list[str]] = {}
            for model, score in zip(report.models, scores):
                if score is not None:
                    counts.setdefault(score.count_text(), []).append(model.name)
            label = line.label + ("" if known[0].higher_is_better else " ↓")
            rows.append([label, named_counts(counts), plain, *("–" if score is None else score.text() for score in scores)])
    return ["score", "n", "no skill", *(model.name for model in report.models)], rows


def markdown(report: Report, all_lines: Sequence[Line], tests: Sequence[Test], *, title: str) -> str:
    """The report as Markdown, without drawings."""
    parts = [f"# {title}", *warnings(report)]
    header, rows = glance_rows(report, all_lines, tests)
    if len(rows) > 1:
        parts += ["## At a glance", "Means over the tasks of a suite.", markdown_table(header, rows, text_columns=2)]
    parts += ["## Scores", "95 % intervals in brackets. ↓: lower is better.", markdown_table(*scores_rows(report, all_lines))]
    for heading, (header, rows) in (
        (f"Against {report.models[0].name}, item by item", tests_rows(tests)),
        ("By language", language_rows(report, all_lines)),
        ("Validity of the answers", validity_rows(report)),
        ("Text", efficiency_rows(report)),
        ("Speed of generation beside accuracy and tokenizer", generation_rows(report, all_lines)),
        ("English beside the target language", retention_rows(report, tests)),
    ):
        if rows:
            parts += [f"## {heading}", *([MULTIPLICITY] if "item by item" in heading else []), markdown_table(header, rows)]
    if across := across_tables(report):
        parts.append("## Across languages")
        parts += [text for heading, header, rows in across for text in (f"### {heading}", markdown_table(header, rows))]
        parts.append(ACROSS_NOTE)
    return "\n\n".join([*parts, "## How it was measured", *filter(None, [*notes(report), generation_note(report)])]) + "\n"


def latex(report: Report, all_lines: Sequence[Line], tests: Sequence[Test] = (), *, copied: bool = False, steps: Sequence[int] = ()) -> str:
    """The papers' tables, one of each suite: models in rows, headline scores in columns, intervals below the figures; needs booktabs.

    Args:
        tests: those that are sure get a mark, but for the papers' own tables.
        copied: the GaMS paper's with the rows that it copies from others.
        steps: SAVA's with a block of rows for each of these training steps.

    Raises:
        ValueError: if no run was evaluated at one of the steps.
    """
    headlines = [line for line in all_lines if line.headline and any(line.score(model) is not None for model in report.models)]
    tables = []
    for suite, lines in by_suite(headlines).items():
        if suite in (GENERATED_SLOVENE, SENTA):
            tables += gams_tables(report, of_senta=suite is SENTA, copied=copied)
        elif suite in ITA_BENCH:
            tables.append(benchmark_table(report, ITA_BENCH[suite], steps=steps))
        elif suite not in ACROSS_LANGUAGES:  # hundreds of columns; across_languages.tex has their means
            tables.append(_latex_table(report, suite, lines, tests))
    if (generated := generation_table(report, steps=steps)) is not None:
        tables.append(generated)
    return "% Needs \\usepackage{booktabs,amssymb}.\n\n" + "\n".join(tables)


def _latex_table(report: Report, suite: Suite, lines: Sequence[Line], tests: Sequence[Test]) -> str:
    marks = marked(tests)
    best: dict[Line, float] = {}
    for line in lines:
        known = [score for model in report.models if (score := line.score(model)) is not None]
        best[line] = (max if known[0].higher_is_better else min)(score.value for score in known)
    averaged = suite.has_average and len(lines) > 1
    rows = []
    for model in report.models:
        scores = [line.score(model) for line in lines]
        figures = [
            _figure(score, best[line], alone=len(report.models) == 1) + _mark(marks.get((line.source, line.metric, model.path)))
            for line, score in zip(lines, scores)
        ]
        below = ["" if s is None or not s.interval_text() else rf"{{\scriptsize {s.interval_text()}}}" for s in scores]
        if averaged:
            mean = mean_score(lines, model)
            figures, below = [*figures, "--" if mean is None else f"{mean:.1f}"], [*below, ""]
        rows += [tex_row([tex(model.name), *figures]), tex_row(["", *below])]
        if any(invalid := [_invalid(line, model) for line in lines]):
            rows.append(tex_row(["", *invalid]))
    tasks = [tex(place(line)[1]) for line in lines] + (["Average"] if averaged else [])
    metrics = [tex(line.label.removeprefix(f"{line.source}, ")) for line in lines] + ([""] if averaged else [])
    note = f"Below each figure its 95\\,\\% interval{_invalid_note(report, lines)}.{_MARKS_NOTE if tests else ''}"
    return tex_table(f"{tex(suite.title)}. {note}", len(tasks), [tex_row(["", *tasks]), tex_row(["Model", *metrics])], rows)


_MARKS_NOTE = (
    r" $\blacktriangle$ better and $\blacktriangledown$ worse than the baseline, sure over all scores and models (paired tests, Holm)."
)


def _mark(test: Test | None) -> str:
    return "" if test is None else r" $\blacktriangle$" if test.better else r" $\blacktriangledown$"


def _invalid(line: Line, model: Evaluated) -> str:
    """The share of answers of no valid form, as the GaMS paper prints it; empty where there can be none."""
    share = Line(line.source, "invalid", False, False).score(model)
    return "" if share is None else rf"{{\scriptsize {share.value:.1f}\,\%}}"


def _invalid_note(report: Report, lines: Sequence[Line]) -> str:
    return r" and the share of invalid answers" if any(_invalid(line, model) for line in lines for model in report.models) else ""


def latex_generation(report: Report, all_lines: Sequence[Line]) -> str:
    """Accuracy, fertility and speed of generation as another table; empty where no speed was measured."""
    header, rows = generation_rows(report, all_lines)
    if not rows:
        return ""
    lines = [tex_row("--" if cell == "–" else tex(cell) for cell in row) for row in (header, *rows)]
    caption = r"Speed of generation beside accuracy and tokenizer, with 95\,\% intervals."
    return tex_table(caption, len(header) - 1, lines[:1], lines[1:])


def _figure(score: Score | None, best: float, *, alone: bool) -> str:
    if score is None:
        return "--"
    return rf"\textbf{{{score.value_text()}}}" if score.value == best and not alone else score.value_text()
