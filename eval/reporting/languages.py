"""Scores by language: a suite's mean over the tasks of each language, and over languages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from common.tables import write_csv
from eval.reporting.runs import Evaluated, Report
from eval.reporting.scores import Line
from eval.reporting.suites import Suite, language_of

ALL = "all languages"
NOTE = (
    "Mean of the headline scores of a suite's tasks, percent where they are shares. Of one language, intervals of tasks with items of their own add up by their"
    " squares. Where tasks ask the same items, in other words or another language, an interval is the mean of theirs, which holds however"
    " alike they are. All languages count alike."
)


@dataclass(frozen=True)
class Mean:
    """A mean of scores with its 95 % interval; ends are None where a score has none."""

    value: float
    low: float | None
    high: float | None

    def text(self) -> str:
        """Value with its interval."""
        return f"{self.value:.1f}" if self.low is None or self.high is None else f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


@dataclass(frozen=True)
class LanguageRow:
    """One suite in one language, or in all.

    Attributes:
        means: of each model, None unless it has all tasks.
    """

    suite: Suite
    language: str
    tasks: int
    means: tuple[Mean | None, ...]


def language_means(report: Report, lines: Sequence[Line]) -> list[LanguageRow]:
    """Rows of every suite that is by language, with one over all of its languages where there are several."""
    members: dict[Suite, dict[str, list[Line]]] = {}
    seen: set[str] = set()
    for line in lines:
        found = language_of(line) if line.headline and line.source not in seen else None
        if found is None:
            continue
        seen.add(line.source)  # its first headline: COMET is one more
        members.setdefault(found[0], {}).setdefault(found[1], []).append(line)
    rows = []
    for suite, languages in members.items():
        by_language = {
            language: [mean_of(model, tasks, same_items=suite.same_items) for model in report.models]
            for language, tasks in languages.items()
        }
        rows += [LanguageRow(suite, language, len(languages[language]), tuple(means)) for language, means in by_language.items()]
        if len(languages) > 1:
            columns = zip(*by_language.values(), strict=True)
            rows.append(LanguageRow(suite, ALL, sum(map(len, languages.values())), tuple(_mean_alike(list(column)) for column in columns)))
    return rows


def mean_of(model: Evaluated, lines: Sequence[Line], *, same_items: bool) -> Mean | None:
    """Mean over tasks; None unless the model has them all."""
    scores = [line.score(model) for line in lines]
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return None
    means = [Mean(score.value, score.low, score.high) for score in known]
    return _mean_alike(list(means)) if same_items else _mean_apart(means)


def _mean_apart(parts: Sequence[Mean]) -> Mean:
    """Of parts whose errors are independent."""
    value = fmean(part.value for part in parts)
    ends = [(part.value - part.low, part.high - part.value) for part in parts if part.low is not None and part.high is not None]
    if len(ends) < len(parts):
        return Mean(value, None, None)
    down, up = (math.sqrt(math.fsum(end[side] ** 2 for end in ends)) / len(ends) for side in (0, 1))
    return Mean(value, value - down, value + up)


def _mean_alike(parts: Sequence[Mean | None]) -> Mean | None:
    """Of parts whose errors may be the same: no interval is too narrow for that."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    lows, highs = [part.low for part in known if part.low is not None], [part.high for part in known if part.high is not None]
    whole = len(lows) == len(highs) == len(known)
    return Mean(fmean(part.value for part in known), fmean(lows) if whole else None, fmean(highs) if whole else None)


def language_rows(report: Report, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table."""
    rows = [
        [row.suite.title, row.language, str(row.tasks), *("–" if mean is None else mean.text() for mean in row.means)]
        for row in language_means(report, lines)
    ]
    return ["suite", "language", "tasks", *(model.name for model in report.models)], rows


def write_languages(path: Path, report: Report, lines: Sequence[Line]) -> None:
    """Write the means as CSV, if there are any."""
    records = list(_records(report, lines))
    if not records:
        return
    write_csv(path, ["suite", "language", "tasks", "model", "mean", "low", "high"], records)


def _records(report: Report, lines: Sequence[Line]) -> Iterator[list[str]]:
    for row in language_means(report, lines):
        for model, mean in zip(report.models, row.means, strict=True):
            if mean is not None:
                numbers = ["" if number is None else repr(number) for number in (mean.value, mean.low, mean.high)]
                yield [row.suite.title, row.language, str(row.tasks), model.name, *numbers]
