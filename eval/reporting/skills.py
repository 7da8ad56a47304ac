"""What a graft cost and what merging brings back: scores over the weight of the merge, differences with intervals, a drawing and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from common.figure_style import drawn
from common.pages import Drawing, rendered
from common.tables import markdown_table, write_csv
from eval.reporting import charts
from eval.reporting.charts import Point
from eval.reporting.runs import Evaluated, Report, Run
from eval.reporting.scores import Line, Test, difference_texts, lines, paired_tests

Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Skills:
    """Measured models.

    Attributes:
        references: models that were not merged, first what the grafts were made of.
        grafts: name -> weight -> the graft merged with so much; 0 is the graft itself.
        how: a sentence on what was merged.
    """

    references: tuple[Evaluated, ...]
    grafts: Mapping[str, Mapping[float, Evaluated]]
    how: str

    @cached_property
    def lines(self) -> list[Line]:
        """What was measured: texts, then tasks."""
        models = (*self.references, *(model for graft in self.grafts.values() for model in graft.values()))
        return [line for line in lines(_report(models)) if line.headline]

    def scores(self, graft: str) -> Table:
        """A row for each measure, a column for each reference and weight, with intervals."""
        models = [*self.references, *self.grafts[graft].values()]
        header = ["", *(model.name for model in self.references), *(_column(weight) for weight in self.grafts[graft])]
        rows = []
        for line in self.lines:
            found = [line.score(model) for model in models]
            rows.append([_label(line), *("–" if score is None else score.text() for score in found)])
        return header, rows

    @cached_property
    def _tests(self) -> dict[str, tuple[list[Test], list[Test]]]:
        """Of each graft: against what it was made of, and its merges against it."""
        return {
            name: (
                paired_tests(_report([self.references[0], models[0.0]]), self.lines),
                paired_tests(_report([models[0.0], *(model for weight, model in models.items() if weight)]), self.lines),
            )
            for name, models in self.grafts.items()
        }

    def changes(self, graft: str) -> Table:
        """What the graft cost, and what each weight changes of that: paired differences, a star where they are sure."""
        cost, returns = self._tests[graft]
        weights = {model.path: weight for weight, model in self.grafts[graft].items()}
        header = ["", f"graft against {self.references[0].name}"]
        header += [f"{_column(weight)} against graft" for weight in self.grafts[graft] if weight]
        rows = []
        for line in self.lines:
            of_line = {weights[test.model.path]: test for test in (*cost, *returns) if test.line == line}
            rows.append([_label(line), *(_change(of_line.get(weight)) for weight in self.grafts[graft])])
        return header, rows

    def finding(self, graft: str) -> str:
        """Which weights are a gain in something and a loss in nothing, as far as this is sure."""
        weights = {model.path: weight for weight, model in self.grafts[graft].items()}
        better: set[float] = set()
        worse: set[float] = set()
        for test in self._tests[graft][1]:
            if test.sure:
                (better if test.better else worse).add(weights[test.model.path])
        gains = ", ".join(f"{weight:g}" for weight in sorted(better - worse)) or "none"
        return f"{graft}: weights significantly better than the graft in some measure and significantly worse in none: {gains}."

    def notes(self) -> list[str]:
        """How it was measured."""
        return [
            self.how,
            "Bits per byte: lower is better. Tasks: percent of items that are right; instructions are right if an answer passes all checks of its"
            " prompt. Intervals are 95 %, over documents and prompts. Differences are paired, on the same documents and prompts; a star marks"
            " those that are sure over all measures and weights of a graft together (Holm).",
        ]

    def markdown(self, title: str) -> str:
        """All tables."""
        parts = [f"# {title}", *self.notes()]
        for name in self.grafts:
            parts += [f"## {name}", self.finding(name), markdown_table(*self.scores(name)), markdown_table(*self.changes(name))]
        return "\n\n".join(parts) + "\n"

    def panels(self) -> list[charts.Panel]:
        """A panel for each measure over the weight."""
        return [self._panel(line) for line in self.lines]

    def _panel(self, line: Line) -> charts.Panel:
        drawn_lines = []
        for series, (name, models) in enumerate(self.grafts.items()):
            scored = {weight: score for weight, model in models.items() if (score := line.score(model)) is not None}
            points = tuple(Point(weight, score.value, score.low, score.high) for weight, score in scored.items())
            drawn_lines.append(charts.Line(name, series, points))
        for series, model in enumerate(self.references, start=len(self.grafts)):
            if (score := line.score(model)) is not None:
                drawn_lines.append(charts.Line(model.name, series, (Point(0, score.value),), is_level=True))
        return charts.Panel(_label(line), "weight of the merge", "bits" if line.is_text else "percent", tuple(drawn_lines))


def _report(models: Sequence[Evaluated]) -> Report:
    return Report(tuple(Run(model.name, (model,)) for model in models))


def _column(weight: float) -> str:
    return f"weight {weight:g}" if weight else "graft"


def _label(line: Line) -> str:
    return line.label.replace("instructions_", "instructions, ").removesuffix(", accuracy") if not line.is_text else line.label


def _change(test: Test | None) -> str:
    if test is None:
        return "–"
    value, interval = difference_texts(test)
    return f"{value} {interval}{' *' if test.sure else ''}"


def write_skills(skills: Skills, directory: Path, *, title: str) -> None:
    """Write skills.html, .md, .csv, .png and .svg."""
    panels = skills.panels()
    light, dark = drawn(lambda palette: charts.draw(panels, palette), directory / "skills.png")
    (directory / "skills.svg").write_bytes(light)
    (directory / "skills.md").write_text(skills.markdown(title), encoding="utf-8")
    drawing = Drawing(
        light,
        dark,
        alternative="Each measure over the weight of the merge; the figures are in the tables below.",
        caption="Left end: the graft as it is. Shaded: 95 % intervals. Dashed: models that were not merged.",
    )
    page = rendered("skills.html", title=title, skills=skills, drawing=drawing)
    (directory / "skills.html").write_text(page, encoding="utf-8")
    listed = [("", "", model) for model in skills.references]
    listed += [(name, f"{weight:g}", model) for name, models in skills.grafts.items() for weight, model in models.items()]
    rows = []
    for graft, weight_text, model in listed:
        for line in skills.lines:
            if (score := line.score(model)) is not None:
                ends = ["" if end is None else repr(end) for end in (score.low, score.high)]
                rows.append([graft, weight_text, model.name, _label(line), repr(score.value), *ends])
    write_csv(directory / "skills.csv", ["graft", "weight", "model", "measure", "value", "low", "high"], rows)
