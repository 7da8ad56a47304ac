"""Draw the papers' figures from folders of results: a page, PNG, SVG and the numbers.

loss: training loss of several runs over steps, tokens or bytes, and validation loss below it where the runs have one.
suite: mean score of a suite of tasks over the checkpoints of each run.
profile: mean score of each suite at the last checkpoint of each run, the suites side by side.
new-tokens: scores, speed and the share of new tokens in prompts and answers over the number of tokens added.
Vocabularies differ in what a token is: losses compare within one vocabulary only, bits per byte (eval.learning_curves) across them.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from common import command
from common.artifacts import digest_file, staged_directory, write_manifest
from common.figure_style import drawn
from common.options import add_option
from common.pages import Drawing, rendered
from common.tables import markdown_table, write_csv
from eval.reporting.charts import Line, Panel, Point, draw, short_number
from eval.reporting.generation import read_generation
from eval.reporting.new_tokens import grid_panels, new_tokens_panels
from eval.reporting.runs import Evaluated, Report, Run, read_report
from eval.reporting.scores import Line as ScoreLine
from eval.reporting.scores import lines as score_lines
from eval.running.generation import EFFICIENCY_NAME
from eval.running.model_names import named_checkpoints
from recipes.runs.run_dir import METRICS_NAME
from recipes.runs.run_metrics import read_metrics

KINDS = ("loss", "suite", "profile", "new-tokens")
_AGAINST = {"steps": "step", "tokens": "tokens", "bytes": "bytes"}


@dataclass(frozen=True)
class Figure:
    """Panels with what is said below them, the files that they are made of, and how many panels stand side by side."""

    panels: tuple[Panel, ...]
    caption: str
    sources: tuple[Path, ...]
    columns: int = 2


def loss_figure(runs: Mapping[str, Path], *, against: str, smooth: int) -> Figure:
    """Training loss of runs, and validation loss where there is one.

    Args:
        runs: name -> folder of a run of recipes.train.
        smooth: mean over so many logged steps.

    Raises:
        ValueError: if a folder is not a run, or its lines lack what the axis needs.
    """
    training, validation = [], []
    for series, (name, folder) in enumerate(runs.items()):
        rows = read_metrics(folder)
        points = [Point(_axis(row, against, folder), row["loss"]) for row in rows if isinstance(row.get("loss"), int | float)]
        if not points:
            raise ValueError(f"{folder / METRICS_NAME} has no training loss yet; let the run log a step")
        training.append(Line(name, series, tuple(_smoothed(points, smooth))))
        for key in dict.fromkeys(key for row in rows for key in row if key.startswith("validation_loss")):
            # A record of validation has its step alone: what was seen until then stands in that of the training loss.
            seen = {row["step"]: row[_AGAINST[against]] for row in rows if _AGAINST[against] in row}
            measured = [Point(seen[row["step"]], row[key]) for row in rows if row.get(key) is not None and row["step"] in seen]
            label = key.removeprefix("validation_loss").strip("_/ ")
            if measured:
                validation.append(Line(f"{name}{f', {label}' if label else ''}", series, tuple(measured), dashed=bool(label)))
    panels = [Panel("Training loss", _x_label(against), "cross-entropy (nats per token)", tuple(training))]
    if validation:
        panels.append(Panel("Validation loss", _x_label(against), "cross-entropy (nats per token)", tuple(validation)))
    caption = "Losses are comparable only between runs with the same vocabulary, since tokens of different vocabularies hold different amounts of text."
    mean = f" Training loss is the mean over {smooth} logged steps." if smooth > 1 else ""
    return Figure(tuple(panels), caption + mean, tuple(folder / METRICS_NAME for folder in runs.values()))


def _axis(row: Mapping[str, float], against: str, folder: Path) -> float:
    if (value := row.get(_AGAINST[against])) is None:
        raise ValueError(f"{folder / METRICS_NAME} does not count {against}; choose another --against")
    return value


def _smoothed(points: Sequence[Point], count: int) -> list[Point]:
    """Mean of the last `count` points at each."""
    return [Point(p.x, fmean(q.y for q in points[max(0, number - count + 1) : number + 1])) for number, p in enumerate(points)]


def _x_label(against: str) -> str:
    return {"steps": "training step", "tokens": "tokens seen", "bytes": "bytes of text seen"}[against]


def suite_figure(report: Report, patterns: Sequence[str], *, tokens_per_step: int | None) -> Figure:
    """Mean over the tasks of each suite against training, a panel per suite; models that were not trained are level lines.

    Args:
        patterns: of names of tasks; each is a suite.

    Raises:
        ValueError: if no task matches a pattern, or no run has two checkpoints with all of them.
    """
    panels = []
    for pattern in patterns:
        members = _members(report, pattern)
        found = [_suite_line(run, members, series, tokens_per_step) for series, run in enumerate(report.runs)]
        lines = [line for line in found if line is not None]
        if not any(len(line.points) > 1 for line in lines):
            raise ValueError(f"no run has two checkpoints with all {len(members)} tasks of {pattern}; evaluate more with eval.watch")
        label = "training step" if tokens_per_step is None else "tokens seen"
        panels.append(Panel(f"{pattern} ({len(members)} tasks)", label, f"mean of {members[0].metric}", tuple(lines)))
    caption = (
        "Mean over the tasks of a suite. Bands: 95 % of the mean, by the intervals of its tasks. Dashed: models that were not trained here."
    )
    return Figure(tuple(panels), caption, tuple(model.path for run in report.runs for model in run.checkpoints))


def profile_figure(report: Report, patterns: Sequence[str]) -> Figure:
    """Mean over the tasks of each suite, the suites side by side and a line for each run's last checkpoint (OFA, Figure 1).

    Raises:
        ValueError: if no task matches a pattern, or no run has all tasks of one.
    """
    suites = {pattern: _members(report, pattern) for pattern in patterns}
    lines = []
    for series, run in enumerate(report.runs):
        means = [_suite_point(run.last, members, None) for members in suites.values()]
        points = tuple(replace(mean, x=number) for number, mean in enumerate(means) if mean is not None)
        if points:
            lines.append(Line(run.name, series, points))
    if not lines:
        raise ValueError(f"no model has all tasks of any of {', '.join(patterns)}; evaluate the missing tasks, or give fewer patterns")
    names = tuple(f"{pattern} ({len(members)})" for pattern, members in suites.items())
    panel = Panel(
        "Means over the tasks of each suite", "suite (number of tasks)", "mean of the tasks' main scores", tuple(lines), x_names=names
    )
    caption = "The last checkpoint of each run. Bands: 95 % of the mean, by the intervals of its tasks."
    return Figure((panel,), caption, tuple(run.last.path for run in report.runs))


def _members(report: Report, pattern: str) -> list[ScoreLine]:
    """The headlines of the tasks of a suite."""
    headlines = {line.source: line for line in reversed(score_lines(report)) if line.headline and not line.is_text}
    members = [line for name, line in headlines.items() if fnmatch.fnmatchcase(name, pattern)]
    if not members:
        raise ValueError(f"no task matches {pattern}; the results have {', '.join(sorted(headlines))}")
    return members


def _suite_line(run: Run, members: Sequence[ScoreLine], series: int, tokens_per_step: int | None) -> Line | None:
    points = [point for model in run.checkpoints if (point := _suite_point(model, members, tokens_per_step)) is not None]
    if not points:
        return None
    return Line(run.name, series, tuple(points), is_level=run.last.step is None)


def _suite_point(model: Evaluated, members: Sequence[ScoreLine], tokens_per_step: int | None) -> Point | None:
    scores = [line.score(model) for line in members]
    known = [score for score in scores if score is not None]
    if len(known) < len(members):
        return None
    mean = fmean(score.value for score in known)
    x = (model.step or 0) * (tokens_per_step or 1)
    ends = [(score.value - score.low, score.high - score.value) for score in known if score.low is not None and score.high is not None]
    if len(ends) < len(known):
        return Point(x, mean)
    # Tasks have items of their own, so that their errors are independent and add up by their squares.
    down, up = (math.sqrt(sum(end[side] ** 2 for end in ends)) / len(ends) for side in (0, 1))
    return Point(x, mean, mean - down, mean + up)


def new_tokens_figure(report: Report, patterns: Sequence[str]) -> Figure:
    """Scores, speedup and shares of new tokens of one source's models, as `new_tokens_panels`."""
    source = report.runs[0].last
    panels = new_tokens_panels(report, patterns)
    caption = f"Tokens added to the {int(source.content['model']['vocab_size']):,} of {source.name}, which is dashed; 95 % intervals."
    return Figure(panels, caption, tuple(model.path for run in report.runs for model in run.checkpoints))


def new_tokens_grid(sources: Mapping[str, Path], patterns: Sequence[str]) -> Figure:
    """The same of several sources in rows, a column for each task, as `grid_panels`."""
    panels, columns, used = grid_panels(sources, patterns)
    return Figure(panels, "Tokens added to each source's vocabulary; the source is dashed; 95 % intervals.", used, columns)


def table(panel: Panel) -> tuple[list[str], list[list[str]]]:
    """First, last, lowest and highest value of every line; all of them where the places have names."""
    if panel.x_names:
        values_of = {line.name: {point.x: f"{point.y:.3f}" for point in line.points} for line in panel.lines}
        named = [[name, *(values.get(number, "–") for number in range(len(panel.x_names)))] for name, values in values_of.items()]
        return [panel.title, *panel.x_names], named
    rows = []
    for line in panel.lines:
        values = [point.y for point in line.points]
        where = short_number(line.points[-1].x)
        rows.append([line.name, f"{values[0]:.3f}", f"{values[-1]:.3f}", f"{min(values):.3f}", f"{max(values):.3f}", where])
    return [panel.title, "first", "last", "lowest", "highest", f"at ({panel.x_label})"], rows


def write_figure(figure: Figure, directory: Path, *, title: str) -> None:
    """Write figure.html, .png, .svg, .md and .csv."""
    light, dark = drawn(lambda palette: draw(figure.panels, palette, columns=figure.columns), directory / "figure.png")
    (directory / "figure.svg").write_bytes(light)
    drawing, tables = Drawing(light, dark, f"{title}; the numbers are in the tables below", figure.caption), list(map(table, figure.panels))
    page = rendered("figures.html", title=title, about=[_described(figure)], drawing=drawing, heading="In numbers", tables=tables)
    (directory / "figure.html").write_text(page, encoding="utf-8")
    markdown = "\n\n".join([f"# {title}", *(markdown_table(*table(panel)) for panel in figure.panels), figure.caption])
    (directory / "figure.md").write_text(f"{markdown}\n", encoding="utf-8")
    lines = ((panel.title, line) for panel in figure.panels for line in panel.lines)
    rows = ([title, line.name, repr(p.x), repr(p.y), p.low, p.high] for title, line in lines for p in line.points)
    write_csv(directory / "figure.csv", ["panel", "line", "x", "y", "low", "high"], rows)


def _described(figure: Figure) -> str:
    names = list(dict.fromkeys(line.name for panel in figure.panels for line in panel.lines))
    return f"{len(figure.panels)} panel{'s' if len(figure.panels) > 1 else ''}: {', '.join(panel.title for panel in figure.panels)}. Lines: {', '.join(names)}."


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__, example="python -m eval.figures loss --run focus=work/focus random=work/random --output figure/")
    parser.add_argument("kind", choices=KINDS, help="figure to draw")
    add_option(parser, "--run [NAME=]DIR", "loss, optionally suite: training runs, folders of recipes.train", [], nargs="+")
    add_option(parser, "--against", "loss: unit of the horizontal axis", "steps", choices=tuple(_AGAINST))
    add_option(parser, "--smooth N", "loss: smooth by the mean over N logged steps", 1)
    add_option(parser, "--results DIR", "suite, profile, new-tokens: folders with results of eval.harness", [], nargs="+", type=Path)
    add_option(
        parser, "--tasks PATTERN", "suite, profile: one suite per pattern, such as 'itabench_*_it'; new-tokens: tasks", [], nargs="+"
    )
    add_option(parser, "--tokens-per-step N", "suite: tokens of one training step; draws against tokens", type=int)
    add_option(parser, "--baseline NAME", "name of the source model (default: the first model not trained here)")
    add_option(parser, "--efficiency DIR", "new-tokens: outputs of eval.generate", [], nargs="+", type=Path)
    add_option(
        parser,
        "--grid NAME=DIR",
        "new-tokens: source models; DIR has the results and eval.generate --task outputs of each and its grafts",
        [],
        nargs="+",
    )
    add_option(parser, "--title", "heading of the page (default: by kind of figure)")
    add_option(parser, "--output DIR", "folder to write: figure.html, .png, .svg, .md and .csv", type=Path, required=True)
    return parser


_TITLES = {
    "loss": "Loss over training",
    "suite": "Suites over checkpoints",
    "profile": "Suites side by side",
    "new-tokens": "Scores and speed over the number of new tokens",
}


def _figure(arguments: argparse.Namespace) -> Figure:
    if arguments.kind == "loss":
        if not arguments.run:
            raise ValueError("the loss figure needs --run; give folders of recipes.train")
        command.require_at_least(1, arguments, "smooth")
        return loss_figure(named_checkpoints(arguments.run, option="--run"), against=arguments.against, smooth=arguments.smooth)
    if arguments.grid:
        if arguments.kind != "new-tokens" or arguments.results or arguments.efficiency:
            raise ValueError(
                "--grid is only for new-tokens, and its folders hold results and outputs of eval.generate: leave out the other options"
            )
        if not arguments.tasks:
            raise ValueError("--grid needs --tasks; give patterns of tasks, a column each")
        return new_tokens_grid(named_checkpoints(arguments.grid, option="--grid"), arguments.tasks)
    if not arguments.results or not arguments.tasks:
        raise ValueError(f"the figure {arguments.kind} needs --results and --tasks; give folders of eval.harness and patterns of tasks")
    report = read_report(arguments.results, baseline=arguments.baseline)
    if arguments.kind == "profile":
        return profile_figure(report, arguments.tasks)
    if arguments.kind == "suite":
        figure = suite_figure(report, arguments.tasks, tokens_per_step=arguments.tokens_per_step)
        return _with_losses(figure, arguments) if arguments.run else figure
    report = Report(report.runs, generation=read_generation(arguments.efficiency, report))
    figure = new_tokens_figure(report, arguments.tasks)
    return Figure(figure.panels, figure.caption, (*figure.sources, *(folder / EFFICIENCY_NAME for folder in arguments.efficiency)))


def _with_losses(figure: Figure, arguments: argparse.Namespace) -> Figure:
    """A figure of suites after the losses of the same runs (OFA, Figure 3)."""
    against = "steps" if arguments.tokens_per_step is None else "tokens"
    losses = loss_figure(named_checkpoints(arguments.run, option="--run"), against=against, smooth=arguments.smooth)
    return Figure((*losses.panels, *figure.panels), f"{losses.caption} {figure.caption}", (*losses.sources, *figure.sources))


def main(argv: Sequence[str] | None = None) -> int:
    """Draw one figure and print its numbers."""
    arguments = _parser().parse_args(argv)
    figure = _figure(arguments)
    with staged_directory(arguments.output) as staging:
        write_figure(figure, staging, title=arguments.title or _TITLES[arguments.kind])
        given = {name: value for name, value in vars(arguments).items() if name != "output" and value}
        write_manifest(
            staging, stage="eval.figures", facts={}, arguments=given, inputs={str(path): digest_file(path) for path in figure.sources}
        )
    for panel in figure.panels:
        print(markdown_table(*table(panel)))
    print(f"\nfigure and page: {arguments.output / 'figure.html'}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
