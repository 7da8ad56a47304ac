"""Panels over the number of tokens added to a source's vocabulary: scores, speed of generation, share of new tokens in prompts and answers."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.reporting.charts import Line, Panel, Point
from eval.reporting.generation import generated_by, read_generation, task_of
from eval.reporting.runs import Evaluated, Report, read_report
from eval.reporting.scores import Line as ScoreLine
from eval.reporting.scores import lines as score_lines
from eval.running.generation import EFFICIENCY_NAME

_X_LABEL = "new tokens"
_SOURCE, _LAPT, _SHARES, _FIRST_WAY = 1, 2, 2, 3  # series; the first way to initialise has the colour 0


def new_tokens_panels(report: Report, patterns: Sequence[str]) -> tuple[Panel, ...]:
    """Scores of each task, speedup and shares of new tokens against how many tokens were added to the source's vocabulary.

    Models that were trained without new tokens are level lines, as the source.

    Raises:
        ValueError: if fewer than two models have another vocabulary size than the baseline, or no task matches.
    """
    sizes = _Sizes(report)
    panels = [_score_panel(line, sizes) for line in _members(report, patterns)]
    if any(generated_by(report, model) for model in sizes.adapted):
        panels += _generation_panels(report, sizes)
    return tuple(panels)


def grid_panels(sources: Mapping[str, Path], patterns: Sequence[str]) -> tuple[tuple[Panel, ...], int, tuple[Path, ...]]:
    """Rows of panels for each source model, and a column for each task: scores, then speed, then shares of new tokens.

    Args:
        sources: name -> folder with the results of a source and of the models made from it, and with outputs of eval.generate.

    Returns:
        (panels, number of columns, files that they are made of)

    Raises:
        ValueError: if a folder lacks results, a task that another has, or outputs of eval.generate on one of the tasks.
    """
    rows: list[list[Panel]] = []
    used: list[Path] = []
    tasks: list[str] = []
    for name, folder in sources.items():
        report = read_report([folder])
        members = _members(report, patterns)
        tasks = tasks or [line.source for line in members]
        if [line.source for line in members] != tasks:
            have = ", ".join(line.source for line in members)
            raise ValueError(
                f"{folder} has results of {have}, the first source of {', '.join(tasks)}; evaluate all sources on the same tasks"
            )
        measured = _efficiency_by_task(folder)
        if missing := [task for task in tasks if task not in measured]:
            raise ValueError(f"{folder} has no output of eval.generate --task {missing[0]}; generate with the source and every model of it")
        scores, speeds, shares = [], [], []
        for line in members:
            measured_report = Report(report.runs, generation=read_generation(measured[line.source], report))
            sizes = _Sizes(measured_report, asked=line)
            made = {panel.y_label: panel for panel in _generation_panels(measured_report, sizes)}
            scores.append(_titled(_score_panel(line, sizes), f"{name}, {line.source}"))
            speeds.append(_titled(made[_SPEEDUP], f"{name}, {line.source}: speed"))
            shares.append(_titled(made[_SHARE], f"{name}, {line.source}: new tokens"))
            used += [folder / EFFICIENCY_NAME for folder in measured[line.source]]
        rows += [scores, speeds, shares]
        used += [model.path for run in report.runs for model in run.checkpoints]
    return tuple(panel for row in rows for panel in row), len(tasks), tuple(dict.fromkeys(used))


def _titled(panel: Panel, title: str) -> Panel:
    return Panel(title, panel.x_label, panel.y_label, panel.lines, panel.log_x)


def _efficiency_by_task(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob(EFFICIENCY_NAME)):
        found.setdefault(str(task_of(path)), []).append(path.parent)
    return found


def _members(report: Report, patterns: Sequence[str]) -> list[ScoreLine]:
    headlines = {line.source: line for line in reversed(score_lines(report)) if line.headline and not line.is_text}
    members = [line for name, line in headlines.items() if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if not members:
        raise ValueError(f"no task matches {' '.join(patterns)}; the results have {', '.join(sorted(headlines))}")
    return sorted(members, key=lambda line: (next(n for n, p in enumerate(patterns) if fnmatch.fnmatchcase(line.source, p)), line.source))


class _Sizes:
    """The source of a report, the models with more tokens than it, and those trained with its own.

    Args:
        asked: only models that have this score.
    """

    def __init__(self, report: Report, *, asked: ScoreLine | None = None) -> None:
        self.source = report.runs[0].last
        self.base = _vocabulary(self.source)
        others = [run.last for run in report.runs[1:] if asked is None or asked.score(run.last) is not None]
        self.adapted = sorted((model for model in others if _vocabulary(model) > self.base), key=_vocabulary)
        self.trained = [model for model in others if _vocabulary(model) == self.base and model.step]
        if len(self.adapted) < 2:
            asked_of = "" if asked is None else f" that answered {asked.source}"
            raise ValueError(
                f"{len(self.adapted)} of the models{asked_of} have more tokens than {self.source.name} ({self.base}); evaluate at least"
                " two sizes"
            )

    def ways(self) -> dict[str, list[Evaluated]]:
        """Models by how their rows were initialised, where each way has two sizes; else all together."""
        found: dict[str, list[Evaluated]] = {}
        for model in self.adapted:
            found.setdefault(str(model.content["facts"].get("method", "")), []).append(model)
        return (
            found
            if len(found) > 1 and all(len({*map(_vocabulary, models)}) > 1 for models in found.values())
            else {"adapted": self.adapted}
        )

    def added(self, model: Evaluated) -> int:
        """Tokens that the source has not."""
        return _vocabulary(model) - self.base


def _vocabulary(model: Evaluated) -> int:
    return int(model.content["model"]["vocab_size"])


def _series(number: int) -> int:
    return number if number == 0 else _FIRST_WAY + number - 1


def _score_panel(line: ScoreLine, sizes: _Sizes) -> Panel:
    drawn_lines = []
    for number, (name, models) in enumerate(sizes.ways().items()):
        scored = [(sizes.added(model), score) for model in models if (score := line.score(model)) is not None]
        drawn_lines.append(Line(name, _series(number), tuple(Point(x, score.value, score.low, score.high) for x, score in scored)))
    for model, series in ((sizes.source, _SOURCE), *((model, _LAPT) for model in sizes.trained)):
        if (score := line.score(model)) is not None:
            drawn_lines.append(Line(model.name, series, (Point(0, score.value),), is_level=True))
    return Panel(line.source, _X_LABEL, line.metric, tuple(drawn_lines), log_x=True)


_SPEEDUP, _SHARE = "speedup (bytes a second)", "% of tokens"


def _generation_panels(report: Report, sizes: _Sizes) -> list[Panel]:
    speeds, shares = [], []
    for number, (name, models) in enumerate(sizes.ways().items()):
        made = [(sizes.added(model), figures) for model in models if (figures := generated_by(report, model)) is not None]
        speed = tuple(Point(x, f["speedup"]["value"], f["speedup"]["low"], f["speedup"]["high"]) for x, f in made)
        speeds.append(Line(name, _series(number), speed))
        after = "" if name == "adapted" else f", {name}"
        for label, key, dashed in (
            (f"new tokens in answers{after}", "target_token_ratio", False),
            (f"new tokens in prompts{after}", "prompt_target_token_ratio", True),
        ):
            points = tuple(Point(x, 100 * f[key]) for x, f in made if f.get(key) is not None)
            if points:
                shares.append(Line(label, _series(number) if after else _SHARES, points, dashed=dashed))
    speeds.append(Line(sizes.source.name, _SOURCE, (Point(0, 1.0),), is_level=True))
    panels = [Panel("Speed of generation", _X_LABEL, _SPEEDUP, tuple(speeds), log_x=True)]
    if shares:
        panels.append(Panel("Share of new tokens", _X_LABEL, _SHARE, tuple(shares), log_x=True))
    return panels
