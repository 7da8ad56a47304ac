"""Which suite a task belongs to, and what suite and task are called in a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from eval.reporting.runs import Evaluated, Report
from eval.reporting.scores import LANGUAGES, Line, Test

_LANGUAGES = LANGUAGES | {
    "ar": "Arabic", "de": "German", "el": "Greek", "hi": "Hindi", "ja": "Japanese", "my": "Burmese", "si": "Sinhala", "sw": "Swahili",
    "te": "Telugu", "th": "Thai",
}  # fmt: skip
_TASKS = {
    "boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "rte": "RTE", "si_nli": "SI-NLI", "wsc": "WSC",
    "arc_easy": "ARC-easy", "hellaswag": "HellaSwag", "mmlu": "MMLU", "piqa": "PIQA", "sciq": "SciQ",
}  # fmt: skip


@dataclass(frozen=True)
class Suite:
    """Tasks that a paper prints in one table.

    Attributes:
        pattern: of the whole name of a task; its groups are what tells the tasks apart.
        has_average: whether the paper prints the mean over its tasks.
    """

    title: str
    pattern: str
    has_average: bool = False


GENERATED_SLOVENE = Suite("Slovene SuperGLUE and SI-NLI, generated answers", r"sl_(\w+)_gen")
_SUITES = (
    GENERATED_SLOVENE,
    Suite("Slovene SuperGLUE and SI-NLI, likeliest label", r"sl_(\w+)_mc"),
    Suite("SENTA, Slovene simplification", r"sl_senta_(\d+)shot"),
    Suite("ITA-Bench, Italian", r"itabench_(\w+)_it", has_average=True),
    Suite("ITA-Bench, English", r"itabench_(\w+)_en", has_average=True),
    Suite("SQuAD-it", r"(squad)_it"),
    Suite("FLORES, few-shot", r"flores_(\w\w)_(\w\w)"),
    Suite("Translation from English, sampled", r"mt_en_(\w\w)", has_average=True),
    Suite("Translation into English, sampled", r"mt_(\w\w)_en", has_average=True),
    Suite("Summaries, sampled", r"sum_(\w\w)", has_average=True),
    Suite("Belebele", r"belebele_(\w+)", has_average=True),
    Suite("Global-MMLU", r"global_mmlu_(?:full_)?([a-z]{2})", has_average=True),
    Suite("INCLUDE", r"include_base_44_(\w+)", has_average=True),
    Suite("MultiBLiMP", r"multiblimp_(\w+)", has_average=True),
    Suite("Global-PIQA", r"global_piqa_(\w+)", has_average=True),
    Suite("ARC in translation", r"arc_([a-z]{2})", has_average=True),
    Suite("HellaSwag in translation", r"hellaswag_([a-z]{2})", has_average=True),
    Suite("Everyday completions, Slovene", r"completion_(sl)"),
    Suite("Everyday completions, English", r"completion_(en)"),
)
TEXTS = Suite("Held-out text", "")
OTHERS = Suite("Other tasks", "")


def place(line: Line) -> tuple[Suite, str]:
    """The suite of a line's task or text, and the task's name inside it."""
    if line.is_text:
        return TEXTS, LANGUAGES.get(line.source, line.source)
    for suite in _SUITES:
        if match := re.fullmatch(suite.pattern, line.source):
            return suite, " to ".join(_title(part) for part in match.groups())
    return OTHERS, line.source


def _title(part: str) -> str:
    if part.isdigit():
        return f"{part} examples"
    return _TASKS.get(part) or _LANGUAGES.get(part) or {"squad": "SQuAD-it"}.get(part, part)


def by_suite(lines: Sequence[Line]) -> dict[Suite, list[Line]]:
    """Lines of each suite, in their order: texts, the papers' suites, others."""
    found: dict[Suite, list[Line]] = {suite: [] for suite in (TEXTS, *_SUITES, OTHERS)}
    for line in lines:
        found[place(line)[0]].append(line)
    return {suite: sorted(members, key=_number) for suite, members in found.items() if members}


def _number(line: Line) -> int:
    """How many examples a task of a suite has that tells its tasks apart so; else 0, which leaves them in their order."""
    match = re.fullmatch(place(line)[0].pattern, line.source)
    return int(match[1]) if match and match.groups() and match[1].isdigit() else 0


def mean_score(lines: Sequence[Line], model: Evaluated) -> float | None:
    """Mean over lines; None unless the model has them all."""
    scores = [line.score(model) for line in lines]
    known = [score.value for score in scores if score is not None]
    return fmean(known) if known and len(known) == len(scores) else None


def glance_rows(report: Report, lines: Sequence[Line], tests: Sequence[Test]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: every suite in one line, with the mean of its scores and how many tasks are surely better or worse.

    A suite's scores are of one metric; tasks that belong to none are left out.
    """
    firsts = {line.source: line for line in reversed(lines) if line.headline and not line.is_text}
    suites = by_suite([line for line in lines if firsts.get(line.source) == line])
    sure = {(test.line, test.model.path): "▲" if test.better else "▼" for test in tests if test.sure}
    rows = []
    for suite, members in suites.items():
        if suite is OTHERS:
            continue
        metric = members[0].label.removeprefix(f"{members[0].source}, ")
        cells = []
        for number, model in enumerate(report.models):
            mean = mean_score(members, model)
            marks = [sure.get((line, model.path)) for line in members]
            told = "".join(f" {mark}{marks.count(mark)}" for mark in "▲▼" if mark in marks)
            cells.append("–" if mean is None else f"{mean:.1f}{told if number else ''}")
        rows.append([suite.title, metric, str(len(members)), *cells])
    return ["suite", "mean of", "tasks", *(model.name for model in report.models)], rows
