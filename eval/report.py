"""Write one report of several evaluated models: a page, Markdown, CSV and a LaTeX table, with intervals and paired tests.

Every model's last checkpoint is compared with the baseline on the same items; models with different prompts or texts are refused, naming
the first difference.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common import command
from common.artifacts import digest_file, staged_directory, write_manifest
from common.options import add_option
from common.tables import markdown_table, write_csv
from eval.reporting.across_languages import training_costs, write_across_languages
from eval.reporting.exports import latex, latex_generation, markdown, scores_rows, write_scores
from eval.reporting.generation import read_generation
from eval.reporting.grid import grid_folders, is_below, read_grid, write_grid
from eval.reporting.items_page import items_page
from eval.reporting.languages import write_languages
from eval.reporting.page import report_page
from eval.reporting.runs import Report, read_report, require_clear_baseline, require_steps
from eval.reporting.scores import all_pairs, difference_texts, lines, paired_tests
from eval.running.generation import EFFICIENCY_NAME
from eval.running.model_names import named_checkpoints
from recipes.planner.costs import KG_PER_KWH
from recipes.planner.hardware import find_gpu
from recipes.runs.run_dir import METRICS_NAME


def write_report(
    report: Report,
    directory: Path,
    *,
    title: str,
    tokens_per_step: int | None,
    items: int,
    copied_rows: bool = False,
    steps: Sequence[int] = (),
) -> None:
    """Write report.html, report.md, scores.csv, tables.tex, items.html where two models answered the same tasks; across_languages.* of encoders."""
    all_lines = lines(report)
    tests = paired_tests(report, all_lines)
    single = items_page(report, all_lines, title=title, items=items) if items else None
    page = report_page(report, all_lines, tests, title=title, tokens_per_step=tokens_per_step, items_link=single is not None)
    (directory / "report.html").write_text(page, encoding="utf-8")
    if single is not None:
        (directory / "items.html").write_text(single, encoding="utf-8")
    (directory / "report.md").write_text(markdown(report, all_lines, tests, title=title), encoding="utf-8")
    tables = [latex(report, all_lines, tests, copied=copied_rows, steps=steps), latex_generation(report, all_lines)]
    (directory / "tables.tex").write_text("\n".join(filter(None, tables)), encoding="utf-8")
    write_scores(directory / "scores.csv", report, all_lines)
    write_languages(directory / "languages.csv", report, all_lines)
    write_across_languages(directory, report)


def write_pairs(report: Report, directory: Path) -> None:
    """Write pairs.md and pairs.csv: every model against each that stands before it, adjusted over all of these tests.

    Raises:
        ValueError: if no two models have a score in common.
    """
    tests = all_pairs(report, lines(report))
    if not tests:
        raise ValueError("no two models share a score with results per item, so there are no pairs to test; leave out --pairs")
    header = ["score", "model", "against", "difference", "95 % interval", "p, adjusted", "verdict"]
    rows = [
        [test.label, test.model.name, other.name, *difference_texts(test), f"{test.adjusted_p_value:.4f}", test.verdict]
        for other, test in tests
    ]
    description = (
        f"# All pairs\n\n{markdown_table(header, rows, text_columns=3)}\n\nAdjusted by Holm over all {len(rows)} tests together.\n"
    )
    (directory / "pairs.md").write_text(description, encoding="utf-8")
    records = []
    for other, test in tests:
        d = test.difference
        ends = [repr(end) if math.isfinite(end) else "" for end in (d.low, d.high)]
        told_p = [repr(d.p_value), repr(test.adjusted_p_value)]
        records.append([test.label, test.model.name, other.name, repr(d.value), *ends, *told_p, test.verdict])
    header = ["score", "model", "against", "difference", "low", "high", "p_value", "p_adjusted", "verdict"]
    write_csv(directory / "pairs.csv", header, records)


def _inputs(report: Report, efficiency: Sequence[Path], run_dirs: Sequence[Path]) -> list[Path]:
    results = [model.path for run in report.runs for model in run.checkpoints]
    return [*results, *(folder / EFFICIENCY_NAME for folder in efficiency), *(folder / METRICS_NAME for folder in run_dirs)]


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__, example="python -m eval.report --results results/ --baseline source --output report/")
    add_option(parser, "--results DIR", "folders with results of eval.harness", nargs="+", type=Path, required=True)
    add_option(
        parser, "--output DIR", "folder to write: report.html, report.md, scores.csv, tables.tex, items.html", type=Path, required=True
    )
    add_option(
        parser,
        "--baseline NAME",
        "model that the others are tested against (default: the one not trained here, or that of the first --grid row)",
    )
    add_option(
        parser,
        "--tokens-per-step N",
        "tokens of one training step, as the plan prints it: also draws curves against tokens and bytes",
        type=int,
    )
    add_option(parser, "--items N", "number of wins and losses to show for each task (default: 20; 0: no page)", 20)
    add_option(
        parser, "--efficiency DIR", "outputs of eval.generate: also tables of speed beside accuracy and tokenizer", [], nargs="+", type=Path
    )
    add_option(parser, "--pairs", "also test all models against each other: pairs.md and pairs.csv", False)
    add_option(
        parser,
        "--grid NAME=DIR",
        "a table with one row for all runs below a folder (languages, seeds), means over seeds, changes over the first row:"
        " grid.md, grid.csv, grid.tex",
        [],
        nargs="+",
    )
    add_option(parser, "--copied-rows", "tables.tex: include the rows that the GaMS paper copies from SloBench and SENTA's authors", False)
    add_option(
        parser,
        "--steps N",
        "tables.tex: SAVA's tables with a block of rows for each of these training steps (default: the last checkpoints)",
        [],
        nargs="+",
        type=int,
    )
    add_option(
        parser,
        "--run NAME=DIR",
        "folders of recipes.train of runs in the results: hours and carbon to the best checkpoint of encoders (OFA's Table 4)",
        [],
        nargs="+",
    )
    add_option(parser, "--gpu NAME", "GPU that the runs of --run used (default: parallel.gpu of their recipes)")
    add_option(
        parser, "--kg-co2-per-kwh X", "carbon intensity of the electricity, in kg of CO2 per kWh (default: 0.432, Italy)", KG_PER_KWH
    )
    add_option(parser, "--title", "heading of the page", "Evaluation")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report and print the table of scores."""
    arguments = _parser().parse_args(argv)
    command.require_at_least(1, arguments, "tokens_per_step")
    if arguments.items < 0:
        raise ValueError(f"--items is {arguments.items}; it must be 0 or more")
    if arguments.kg_co2_per_kwh <= 0:
        raise ValueError(f"--kg-co2-per-kwh is {arguments.kg_co2_per_kwh:g}; expected a number above 0")
    report = read_report(arguments.results, baseline=arguments.baseline)
    require_steps(report, arguments.steps)
    folders = grid_folders(arguments.grid)
    if arguments.baseline is None and folders:  # changes are over the grid's first row
        report = replace(report, runs=tuple(sorted(report.runs, key=lambda run: not is_below(run.last, next(iter(folders.values()))))))
    elif arguments.baseline is None:
        require_clear_baseline(report)
    runs, gpu = named_checkpoints(arguments.run, option="--run"), find_gpu(arguments.gpu) if arguments.gpu else None
    report = replace(
        report,
        generation=read_generation(arguments.efficiency, report),
        costs=training_costs(report, runs, gpu=gpu, kg_per_kwh=arguments.kg_co2_per_kwh),
    )
    grid = read_grid(report, folders, lines(report)) if folders else None
    with staged_directory(arguments.output) as staging:
        write_report(
            report,
            staging,
            title=arguments.title,
            tokens_per_step=arguments.tokens_per_step,
            items=arguments.items,
            copied_rows=arguments.copied_rows,
            steps=arguments.steps,
        )
        if arguments.pairs:
            write_pairs(report, staging)
        if grid is not None:
            write_grid(grid, report, staging)
        write_manifest(
            staging,
            stage="eval.report",
            facts={"baseline": report.models[0].name},
            arguments={"results": [str(path) for path in arguments.results], "title": arguments.title},
            inputs={str(path): digest_file(path) for path in _inputs(report, arguments.efficiency, list(runs.values()))},
        )
    print(markdown_table(*scores_rows(report, lines(report)), text_columns=1))
    print(f"\nreport: {arguments.output / 'report.html'}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
