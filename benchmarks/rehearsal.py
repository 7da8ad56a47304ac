"""What a rehearsal counts of the bundled recipes beside what the planner says: memory, traffic, kernels and waits of a rank.

Each recipe is rehearsed as some of its ranks, and its reports are kept; the table is made of all reports that are kept, so that it can be
gathered in several runs.  Ranks that are alike share a row.  A recipe that fails is named at the end, and leaves no row.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import command
from recipes.numbers import arithmetic
from recipes.rules.compose import compose_recipe, recipe_names

HEAD = (
    "| recipe | TP x PP x DP, micro batch | rank | fullest in | counted GiB | planned GiB | difference | a resume, GiB | a save on the host, GiB"
    " | a step sends (GB), beside products | attention | waits of a step |\n"
    "|---|---|---:|---|---:|---:|---:|---:|---:|---|---|---:|"
)
# Layouts and objectives that no published recipe has together, some in a smaller world.
_TP1 = "parallel=a100_40gb_16x4_tp1"
_TWO_STAGES = ("parallel.pipeline_parallel_size=2",)
_TENSORS = ("parallel.tensor_parallel_size=2", "schedule.micro_batch_size=4")  # of recipes that foretell two tokens
_FOUR, _EIGHT = (("parallel.num_nodes=1", f"parallel.devices_per_node={number}") for number in (4, 8))
_PARTS = "parallel.sequence_parallel=true"
FURTHER: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gams/focus, two tokens": ("gams/focus", ("+objective=two_tokens",)),
    "gams/focus, two stages": ("gams/focus", (_TP1, *_TWO_STAGES, *_FOUR)),
    "gams/opt_gams, two stages": ("gams/opt_gams", (_TP1, *_TWO_STAGES, *_FOUR)),
    "gams/focus, parts of sequences, core_attn and mlp again": (
        "gams/focus",
        ("parallel.tensor_parallel_size=2", _PARTS, "+recomputation={granularity: selective, modules: [core_attn, mlp]}"),
    ),
    "low_resource/llama3, two halves": ("low_resource/llama3", (*_TENSORS, *_FOUR)),
    "low_resource/llama3, two halves, two stages": ("low_resource/llama3", (*_TENSORS, *_TWO_STAGES, *_EIGHT)),
    "low_resource/gemma2, two halves": ("low_resource/gemma2", (*_TENSORS, *_FOUR)),
    "low_resource/gemma2, two halves, two stages": ("low_resource/gemma2", (*_TENSORS, *_TWO_STAGES, *_EIGHT)),
    "sava/mistral, two stages": ("sava/mistral", _TWO_STAGES),
    "sava/mistral, 8,192 tokens, two stages": ("sava/mistral", ("data.sequence_length=8192", *_TWO_STAGES, "parallel.num_nodes=4")),
    "sava/llama, parts of sequences": ("sava/llama", (_PARTS,)),
    "sava/llama, parts of sequences, all layers again": ("sava/llama", (_PARTS, "+recomputation={method: block}")),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Rehearse, and print the table of docs/rehearsal.md."""
    parser = command.parser(
        __doc__, prog="benchmarks.rehearsal", example="python -m benchmarks.rehearsal --reports work/rehearsals gams/focus sava/mistral"
    )
    parser.add_argument("--reports", type=Path, required=True, metavar="DIR", help="where the reports are kept")
    parser.add_argument("--ranks", default="stages", metavar="LIST", help="as in recipes.rehearse (default: %(default)s)")
    parser.add_argument("--table-only", action="store_true", help="rehearse nothing")
    parser.add_argument("recipes", nargs="*", help="bundled recipes, or rows of `FURTHER` (default: all but the demo's)")
    arguments = parser.parse_args(argv)
    failed = []
    for name in () if arguments.table_only else arguments.recipes or [*published(), *FURTHER]:
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

    recipe = compose_recipe(*FURTHER.get(name, (name, ())))
    found = {"recipe": name, "layout": _layout(recipe.parallel, recipe.schedule.micro_batch_size), "ranks": list(rehearse(recipe, ranks))}
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{re.sub('[^a-z0-9_]+', '-', name)}-{ranks}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _layout(parallel: Any, micro_batch_size: int) -> str:
    replicas = arithmetic.data_parallel_size(parallel)
    return f"{parallel.tensor_parallel_size} x {parallel.pipeline_parallel_size} x {replicas}, {micro_batch_size}"


def rows(kept: Mapping[str, Any]) -> list[str]:
    """Lines of the table, one for all ranks that have the same in it."""
    ranks: dict[tuple[str, ...], list[str]] = {}
    for report in kept["ranks"]:
        ranks.setdefault(_cells(report), []).append(str(report["rank"]))
    name = f"`{kept['recipe']}`"
    return [f"| {' | '.join((name, kept['layout'], ', '.join(same), *cells))} |" for cells, same in ranks.items()]


def _cells(report: Mapping[str, Any]) -> tuple[str, ...]:
    counted, planned = report["peak"], report["planned"]["total"]
    sent: dict[str, list[float]] = {}
    for row in report["traffic of a step"]:
        size, beside = sent.setdefault(row["group"], [0.0, 0.0])
        sent[row["group"]] = [size + row["GB"], beside + row["GB"] * row["overlapped"]]
    return (
        report["fullest phase"],
        f"{counted:.2f}",
        f"{planned:.2f}",
        f"{planned / counted - 1:+.1%}",
        f"{report['phases']['load, resumed']:.2f}",
        f"{report['host']['save']:.2f}",
        ", ".join(f"{group} {size:.2f} ({beside / size:.0%})" for group, (size, beside) in sent.items() if size >= 0.005),
        ", ".join(report["attention kernels"]) or "products in blocks",  # which are no call of torch's attention
        f"{sum(report['waits of a step'].values()):g}",
    )


if __name__ == "__main__":
    command.run(main)
