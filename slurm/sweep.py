"""Table of a sweep: mean and standard deviation of bits per byte over one axis (seeds), one row for each point of the others (methods).

A sweep is a pipeline with axes and a `summary` (recipes/pipelines/bundled/sweep.yaml); `scion run` runs it, on a cluster each stage as a job array.
Points without a result are counted as missing.  Exit code 1 while any is missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from common import command
from common.command import suggested
from common.plain_files import read_json
from common.tables import markdown_table
from recipes.pipelines.file import Pipeline, Summary, Task, axes_of, output_of, tasks_of
from recipes.pipelines.load import load_pipeline

RESULT_NAME = "result.json"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        values: of the axis that the summary runs over -> bits per byte; None where there is no result yet.
    """

    point: tuple[str, ...]
    values: dict[str, float | None]

    @property
    def found(self) -> list[float]:
        """The values that there are."""
        return [value for value in self.values.values() if value is not None]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of what there is."""
    parser = command.parser(__doc__, example="python -m slurm.sweep recipes/pipelines/bundled/sweep.yaml")
    parser.add_argument("pipeline", type=Path, help="YAML file of the sweep's pipeline")
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    summary = require_summary(pipeline)
    rows = summarise(pipeline, summary)
    print(f"Bits per byte on {summary.text}, mean and standard deviation over {summary.over}\n")
    print(render_rows(summary, rows))
    missing = sum(value is None for row in rows for value in row.values.values())
    if missing:
        print(f"\n{missing} results are missing; see `{suggested('slurm.status', pipeline.root)}`")
    return command.WRONG if missing else command.DONE


def require_summary(pipeline: Pipeline) -> Summary:
    """The pipeline's summary.

    Raises:
        ValueError: if it has none, or one that names what there is not.
    """
    summary = pipeline.summary
    if summary is None:
        raise ValueError(f"the pipeline {pipeline.name} has no summary; give its stage, text, rows and over")
    if summary.stage not in pipeline.stages:
        raise ValueError(f"the summary names the stage {summary.stage}; there are {', '.join(pipeline.stages)}")
    axes = axes_of(pipeline, summary.stage)
    if {*summary.rows, summary.over} != set(axes) or summary.over in summary.rows:
        raise ValueError(
            f"the summary has the rows {', '.join(summary.rows)} over {summary.over}; expected each axis of stage {summary.stage}"
            f" once: {', '.join(axes)}"
        )
    return summary


def summarise(pipeline: Pipeline, summary: Summary) -> list[Row]:
    """A row for each point of the summary's rows, in the order of the axes' values."""
    results = {task.point: _result(pipeline, task, summary.text) for task in tasks_of(pipeline, summary.stage)}
    rows = []
    for point in itertools.product(*(pipeline.axes[axis] for axis in summary.rows)):
        here = dict(zip(summary.rows, point))
        values = {dict(other)[summary.over]: value for other, value in results.items() if here.items() <= dict(other).items()}
        rows.append(Row(point, values))
    return rows


def render_rows(summary: Summary, rows: Sequence[Row]) -> str:
    """The table, with every single value."""
    over = list(rows[0].values)
    header = [*summary.rows, "mean", "deviation", *(f"{summary.over} {value}" for value in over)]
    return markdown_table(header, [[*row.point, *_spread(row.found), *map(_figure, row.values.values())] for row in rows])


def _spread(values: Sequence[float]) -> list[str]:
    return [_figure(fmean(values) if values else None), _figure(stdev(values) if len(values) > 1 else None)]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _result(pipeline: Pipeline, task: Task, text: str) -> float | None:
    output = output_of(pipeline, task)
    paths = [path for path in (output or Path()).glob(f"*/{RESULT_NAME}") if not path.parent.name.startswith(".")]
    if not paths:
        return None
    if len(paths) > 1:
        raise ValueError(f"{output} has the results of {len(paths)} models; a summary wants a stage that evaluates one")
    texts = read_json(paths[0])["texts"]
    if text not in texts:
        raise ValueError(f"{paths[0]} has no text {text}; it has {', '.join(texts) or 'none'}")
    return float(texts[text]["bits_per_byte"])


if __name__ == "__main__":
    command.run(main)
