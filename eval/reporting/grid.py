"""A table as papers have it: a row for each way of adapting, its models of all languages and seeds in one line, means over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.tables import markdown_table, tex, tex_row, tex_table, write_csv
from eval.reporting.runs import Evaluated, Report
from eval.reporting.scores import Line

_DARKEST = 50  # per cent of the colour, at a relative change of a half and more


@dataclass(frozen=True)
class Cell:
    """One score of one row.

    Attributes:
        value: mean over the runs, in the unit that is printed.
        deviation: standard deviation over the runs (n - 1), of one run over its sampled answers; None of one run without such.
        runs: models that were asked.
        gain: relative change over the first row, positive where it is better; None without that figure or from 0.
    """

    value: float
    deviation: float | None
    runs: int
    gain: float | None = None

    def text(self) -> str:
        """Mean and standard deviation."""
        digits = 3 if abs(self.value) < 10 and self.value != 0 else 1
        return f"{self.value:.{digits}f}" + ("" if self.deviation is None else f" ± {self.deviation:.{digits}f}")


Grid = dict[str, dict[Line, Cell]]


def grid_folders(words: Sequence[str]) -> dict[str, list[Path]]:
    """Row -> folders, from NAME=DIR; a name that comes again has more folders.

    Raises:
        ValueError: if a word has another form.
    """
    rows: dict[str, list[Path]] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not (name and equals and folder):
            raise ValueError(f"--grid {word} has not the form NAME=DIR; give the row's name and the folder of its models' results")
        rows.setdefault(name, []).append(Path(folder).resolve())
    return rows


def is_below(model: Evaluated, folders: Sequence[Path]) -> bool:
    """Whether a model's results are in one of these folders."""
    return any(model.path.resolve().is_relative_to(folder) for folder in folders)


def read_grid(report: Report, folders: Mapping[str, Sequence[Path]], all_lines: Sequence[Line]) -> Grid:
    """Rows of headline scores, each over the last checkpoints of all runs below the row's folders.

    Raises:
        ValueError: if a row has no run of the report, or a run stands in two rows.
    """
    row_of: dict[Path, str] = {}
    rows: Grid = {}
    headlines = [line for line in all_lines if line.headline]
    for name, below in folders.items():
        models = [model for model in report.models if is_below(model, below)]
        if not models:
            raise ValueError(f"--grid {name}: there is no result of --results below {', '.join(map(str, below))}; name folders of results")
        for model in models:
            other = row_of.setdefault(model.path, name)
            if other != name:
                raise ValueError(f"--grid: {model.path.parent} belongs to {other} and to {name}; give each row folders of its own")
        rows[name] = {line: cell for line in headlines if (cell := _cell(line, models)) is not None}
    return _with_gains(rows, report)


def _cell(line: Line, models: Sequence[Evaluated]) -> Cell | None:
    values = [score.value for model in models if (score := line.score(model)) is not None]
    if not values:
        return None
    if len(values) > 1:
        return Cell(statistics.fmean(values), statistics.stdev(values), len(values))
    return Cell(values[0], next((_deviation_of_samples(line, model) for model in models if line.score(model) is not None), None), 1)


def _deviation_of_samples(line: Line, model: Evaluated) -> float | None:
    """Between the sampled runs of one model: the five of the low-resource paper's tables are such."""
    score = None if line.is_text else replace(line, metric=f"{line.metric}_sd").score(model)
    return None if score is None else score.value


def _with_gains(rows: Grid, report: Report) -> Grid:
    first = next(iter(rows.values()))
    gained: Grid = {}
    for name, cells in rows.items():
        gained[name] = {}
        for line, cell in cells.items():
            change = (cell.value - first[line].value) / first[line].value if line in first and first[line].value else None
            gain = change if change is None or _higher_is_better(line, report) else -change
            gained[name][line] = Cell(cell.value, cell.deviation, cell.runs, gain)
    return gained


def _higher_is_better(line: Line, report: Report) -> bool:
    return next(score.higher_is_better for model in report.models if (score := line.score(model)) is not None)


def write_grid(grid: Grid, report: Report, directory: Path) -> None:
    """Write grid.md, grid.csv and grid.tex."""
    columns = list(dict.fromkeys(line for cells in grid.values() for line in cells))
    best = {
        line: (max if _higher_is_better(line, report) else min)(cells[line].value for cells in grid.values() if line in cells)
        for line in columns
    }
    header = ["", *(line.label for line in columns)]
    rows = [[name, *(cells[line].text() if line in cells else "–" for line in columns)] for name, cells in grid.items()]
    counts = sorted({cell.runs for cells in grid.values() for cell in cells.values()})
    note = f"Means and standard deviations over the runs of a row: {' or '.join(map(str, counts))} for each figure."
    if any(cell.runs == 1 and cell.deviation is not None for cells in grid.values() for cell in cells.values()):
        note += " Of one run: over its sampled answers."
    (directory / "grid.md").write_text(f"# Ways to adapt\n\n{markdown_table(header, rows)}\n\n{note}\n", encoding="utf-8")
    records = []
    for name, cells in grid.items():
        for line, cell in cells.items():
            deviation, gain = ("" if value is None else repr(value) for value in (cell.deviation, cell.gain))
            records.append([name, line.source, line.metric, repr(cell.value), deviation, cell.runs, gain])
    write_csv(directory / "grid.csv", ["row", "source", "metric", "mean", "standard_deviation", "runs", "relative_gain"], records)
    (directory / "grid.tex").write_text(_latex(grid, columns, best, note), encoding="utf-8")


def _latex(grid: Grid, columns: Sequence[Line], best: Mapping[Line, float], note: str) -> str:
    first = next(iter(grid))
    rows = [tex_row([tex(name), *(_figure(cells.get(line), best[line]) for line in columns)]) for name, cells in grid.items()]
    caption = f"{note} Darker blue and red: larger gains and losses over {tex(first)}."
    head = tex_row(["", *(tex(line.label) for line in columns)])
    return "% Needs \\usepackage{booktabs} and \\usepackage[table]{xcolor}.\n\n" + tex_table(caption, len(columns), [head], rows)


def _figure(cell: Cell | None, best: float) -> str:
    if cell is None:
        return "--"
    value, _, deviation = cell.text().partition(" ± ")
    shown = (rf"\textbf{{{value}}}" if cell.value == best else value) + (rf"$_{{{deviation}}}$" if deviation else "")
    depth = 0 if cell.gain is None else round(_DARKEST * min(1.0, 2 * abs(cell.gain)))
    return (rf"\cellcolor{{{'blue' if (cell.gain or 0) > 0 else 'red'}!{depth}}}" if depth else "") + shown
