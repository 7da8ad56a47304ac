"""The SAVA paper's Tables 3 to 6, 10 and 11: ITA-Bench with standard errors and the average of six, COMET and SQuAD-it, rows by step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from common.tables import tex, tex_row, tex_table
from eval.reporting.runs import Evaluated, Report
from eval.running.results import headline_score

_BENCHMARKS = {"hellaswag": "Hellaswag", "mmlu": "MMLU", "arc_easy": "Arc Easy", "piqa": "PIQA", "sciq": "SCIQ", "boolq": "BOOLQ"}
_LANGUAGES = {"it": ("Italian translated", "3 and 4"), "en": ("English", "10 and 11")}
_GENERATED = (("flores_en_it", "comet", "EN-IT"), ("flores_it_en", "comet", "IT-EN"), ("squad_it", "rougeL_first", "RL"))


def benchmark_table(report: Report, language: str, *, steps: Sequence[int] = ()) -> str:
    """Accuracy on ITA-Bench in one language, with the standard error as the paper's index; needs booktabs.

    Args:
        steps: a block of rows for each of these training steps; without any, one row for the last checkpoint of each run.
    """
    tasks = {f"itabench_{name}_{language}": title for name, title in _BENCHMARKS.items()}
    asked = {task: title for task, title in tasks.items() if task in report.tasks}
    averaged = len(asked) > 1

    def cells(model: Evaluated) -> list[float | None]:
        scores = [_score(model, task) for task in asked]
        known = [score for score in scores if score is not None]
        mean = fmean(known) if averaged and len(known) == len(scores) else None
        return [*scores, mean] if averaged else scores

    def errors(model: Evaluated) -> list[float | None]:
        return [_standard_error(model, task) for task in asked] + ([None] if averaged else [])

    about, numbers = _LANGUAGES[language]
    caption = f"As Tables {numbers} of the SAVA paper: 0-shot results over {about} benchmarks, with standard errors."
    headings = [*asked.values(), *(["AVG"] if averaged else [])]
    return _table(report, caption, [f"Model & {' & '.join(headings)}"], cells, errors, steps=steps)


def generation_table(report: Report, *, steps: Sequence[int] = ()) -> str | None:
    """COMET of both directions beside ROUGE-L of SQuAD-it; None where COMET was not computed."""
    if not any(_figure(model, task, metric) for model in _every(report) for task, metric, _ in _GENERATED[:2]):
        return None
    shots = {task: model.tasks[task]["num_fewshot"] for model in _every(report) for task, *_ in _GENERATED if task in model.tasks}
    description = f"{_shots(shots, 'flores_en_it')} of FLORES by COMET and {_shots(shots, 'squad_it')} of SQuAD-it by ROUGE-L"
    heads = [r" & \multicolumn{2}{c}{FLORES} & SQuAD-it", f"Model & {' & '.join(heading for *_, heading in _GENERATED)}"]

    def cells(model: Evaluated) -> list[float | None]:
        return [(_figure(model, task, metric) or {}).get("value") for task, metric, _ in _GENERATED]

    return _table(report, f"As Tables 5 and 6 of the SAVA paper: results {description}.", heads, cells, None, steps=steps)


def _shots(shots: Mapping[str, Any], task: str) -> str:
    return f"{shots[task]}-shot" if task in shots else "few-shot"


def _table(report: Report, caption: str, heads: Sequence[str], cells: Any, errors: Any, *, steps: Sequence[int]) -> str:
    rows = []
    for title, models in _blocks(report, steps):
        values = {model.name: cells(model) for model in models}
        width = len(next(iter(values.values())))
        marked = [name for name, model in zip(values, models) if len(models) > 1 and not _keeps_vocabulary(model)]
        ranks = [sorted({values[name][place] for name in marked} - {None}, reverse=True)[:2] for place in range(width)]
        if title:
            rows += [r"\midrule", rf"\multicolumn{{{width + 1}}}{{c}}{{{title}}} \\", r"\midrule"]
        for model in models:
            below = errors(model) if errors is not None else [None] * width
            best = ranks if model.name in marked else [[]] * width
            row = [_cell(*parts) for parts in zip(values[model.name], below, best)]
            rows.append(tex_row([tex(_row_name(report, model)), *row]))
    columns = heads[-1].count("&")
    return tex_table(caption, columns, [rf"{head} \\" for head in heads], rows)


def _blocks(report: Report, steps: Sequence[int]) -> list[tuple[str, list[Evaluated]]]:
    """Heading and rows of each block; those that were not trained here stand first, without a heading."""
    if not steps:
        return [("", report.models)]
    blocks: list[tuple[str, list[Evaluated]]] = [("", [run.last for run in report.runs if run.last.step is None])]
    for step in steps:
        at = [model for run in report.runs for model in run.checkpoints if model.step == step]
        blocks.append((f"{step} Training Steps", at))
    return [(title, models) for title, models in blocks if models]


def _keeps_vocabulary(model: Evaluated) -> bool:
    """Continual training without a new vocabulary (LAPT), which the paper leaves out of bold and underlined."""
    return model.content["facts"].get("method") in (None, "copy", "lapt") or bool(re.search(r"(?<![a-z])lapt(?![a-z])", model.name.lower()))


def _row_name(report: Report, model: Evaluated) -> str:
    """The run's name, as blocks tell its steps; without blocks the checkpoint's."""
    run = next(run for run in report.runs if model in run.checkpoints)
    return model.name if model is run.last and len(run.checkpoints) == 1 else run.name


def _every(report: Report) -> list[Evaluated]:
    return [model for run in report.runs for model in run.checkpoints]


def _figure(model: Evaluated, task: str, metric: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = model.tasks.get(task, {}).get("metrics", {}).get(metric)
    return found


def _score(model: Evaluated, task: str) -> float | None:
    value = headline_score(model.tasks[task])["value"] if task in model.tasks else None
    return None if value is None else 100 * float(value)


def _standard_error(model: Evaluated, task: str) -> float | None:
    error = headline_score(model.tasks[task]).get("stderr") if task in model.tasks else None
    return None if error is None else 100 * float(error)


def _cell(value: float | None, error: float | None, best: Sequence[float]) -> str:
    """A value, bold where it is the best of the adapted models, underlined where it is the second."""
    if value is None:
        return "--"
    shown = f"{value:.2f}"
    if value in best:
        shown = (r"\mathbf", r"\underline")[best.index(value)] + f"{{{shown}}}"
    return f"${shown}_{{\\pm {error:.2f}}}$" if error is not None else f"${shown}$"
