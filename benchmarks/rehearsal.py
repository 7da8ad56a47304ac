"""What a rehearsal counts of the bundled recipes beside what the planner says: memory, traffic, kernels and waits of a rank.

Each recipe is rehearsed as its first rank, and its report is kept; the table is made of all reports that are kept, so that it can be gathered
in several runs.  A recipe that fails is named at the end, and leaves no row.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep import command
from recipes import arithmetic
from recipes.compose import compose_recipe, recipe_names

HEAD = (
    "| recipe | TP x PP x DP, micro batch | rank | fullest in | counted GiB | planned GiB | difference | a step sends (GB) | attention | waits of a step |\n"
    "|---|---|---:|---|---:|---:|---:|---|---|---:|"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse, and print the table of docs/rehearsal.md."""
    parser = command.parser(
        __doc__, prog="benchmarks.rehearsal", example="python -m benchmarks.rehearsal --reports work/rehearsals gams/focus sava/mistral"
    )
    parser.add_argument("--reports", type=Path, required=True, metavar="DIR", help="where the reports are kept")
    parser.add_argument("--ranks", default="first", metavar="LIST", help="as in recipes.rehearse (default: %(default)s)")
    parser.add_argument("--table-only", action="store_true", help="rehearse nothing")
    parser.add_argument("recipes", nargs="*", help="bundled recipes (default: all but the demo's)")
    arguments = parser.parse_args(argv)
    failed = []
    for name in () if arguments.table_only else arguments.recipes or published():
        try:
            _keep(arguments.reports, name, arguments.ranks)
        except Exception:  # of any kind: finding them is what a rehearsal is for
            traceback.print_exc()
            failed.append(name)
    print("\n".join([HEAD, *(row for path in sorted(arguments.reports.glob("*.json")) for row in rows(json.loads(path.read_text())))]))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else command.DONE


def published() -> list[str]:
    """Bundled recipes that have a published model to be rehearsed with."""
    return [name for name in recipe_names() if not name.startswith("demo")]


def _keep(directory: Path, name: str, ranks: str) -> None:
    from recipes.rehearsal.run import rehearse

    recipe = compose_recipe(name, [])
    found = {"recipe": name, "layout": _layout(recipe.parallel, recipe.schedule.micro_batch_size), "ranks": list(rehearse(recipe, ranks))}
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name.replace('/', '-')}-{ranks}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _layout(parallel: Any, micro_batch_size: int) -> str:
    replicas = arithmetic.data_parallel_size(parallel)
    return f"{parallel.tensor_parallel_size} x {parallel.pipeline_parallel_size} x {replicas}, {micro_batch_size}"


def rows(kept: Mapping[str, Any]) -> list[str]:
    """Lines of the table, one for each rank."""
    return [_row(kept["recipe"], kept["layout"], report) for report in kept["ranks"]]


def _row(name: str, layout: str, report: Mapping[str, Any]) -> str:
    counted, planned = report["peak"], report["planned"]["total"]
    sent: dict[str, float] = {}
    for row in report["traffic of a step"]:
        sent[row["group"]] = sent.get(row["group"], 0.0) + row["GB"]
    cells = (
        f"`{name}`",
        layout,
        report["rank"],
        report["fullest phase"],
        f"{counted:.2f}",
        f"{planned:.2f}",
        f"{planned / counted - 1:+.1%}",
        ", ".join(f"{group} {size:.2f}" for group, size in sent.items() if size >= 0.005),
        ", ".join(report["attention kernels"]) or "products in blocks",  # which are no call of torch's attention
        f"{sum(report['waits of a step'].values()):g}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    command.run(main)
