"""What stages cost at three sizes, the line through them, and what it says of 30 GB, 1 TB and 512 GPUs.

Each command is a process of its own, measured as by `benchmarks.all`.  Besides, what `recipes.plan` says of 512 GPUs, and how many of Python's files their
ranks read at the start.  Figures are kept as COMMIT.growth.json, stage by stage; `--tables` prints them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.meter import ROOT
from benchmarks.whole.case import CONTENDERS
from benchmarks.whole.commands import add_arguments, measure_stages, print_tables, require_inputs
from benchmarks.whole.growing import GROWING
from benchmarks.whole.line import GROWTH_HEADER, growth_row
from benchmarks.whole.material import Material
from benchmarks.whole.page import state
from benchmarks.whole.results import Results
from common import command
from common.tables import markdown_table

_RANKS, _RANKS_A_NODE = 512, 4


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the tables."""
    arguments = _parser().parse_args(argv)
    if arguments.tables:
        print_tables(arguments, "benchmarks.growth", tables)
        return command.DONE
    require_inputs(arguments)
    stages = list(arguments.only or GROWING)
    without = [stage for stage in stages if GROWING[stage].needs_model and arguments.model is None]
    if without and arguments.only:
        raise ValueError(f"--only {' '.join(without)} needs --model; --help says what to give")
    missing = dict.fromkeys(without, "not measured: --model was not given")
    stages = [stage for stage in stages if stage not in without]
    material = _material(arguments)
    if arguments.prepare:
        for stage in stages:
            list(GROWING[stage].cases(material))
        return command.DONE
    results = measure_stages(
        stages,
        lambda stage: GROWING[stage].cases(material),
        arguments=arguments,
        work=material.work,
        suffix=".growth.json",
        missing=missing,
    )
    print(tables(results))
    return command.WRONG if any("failed" in why for why in results.missing.values()) else command.DONE


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__,
        prog="benchmarks.growth",
        example="python -m benchmarks.growth --text novels.jsonl.gz --model smollm2/ --output costs/",
    )
    add_arguments(parser, stages=GROWING, output="COMMIT.growth.json")
    parser.add_argument("--model", type=Path, metavar="DIR", help="Hugging Face folder of a real model, for mean, focus and harness")
    parser.add_argument(
        "--megabytes", type=float, default=25, metavar="N", help="of text, from which tokenizers of up to 256,000 tokens are trained"
    )
    return parser


def _material(arguments: argparse.Namespace) -> Material:
    work = (arguments.work or arguments.output / "work").resolve()
    arguments.output.mkdir(parents=True, exist_ok=True)
    text = tuple(path.resolve() for path in arguments.text)
    material = Material(work, text, arguments.megabytes, "llama-3.2-1b", "", arguments.model.resolve() if arguments.model else None)
    material.require_same_inputs()
    return material


def tables(results: Results) -> str:
    """All of it in Markdown."""
    wanted = {growing.name: growing.wanted for growing in GROWING.values()}
    measured = {case: results.of_case(case) for case in results.cases}
    rows = [growth_row(figures, wanted[case]) for case, figures in measured.items() if len({figure.amount for figure in figures}) > 1]
    notes = "\n".join(f"- {what}: {why}." for what, why in results.missing.items())
    parts = [state(results), markdown_table(GROWTH_HEADER, rows), notes, ranks_sentence()]
    return "\n\n".join(part for part in parts if part)


def ranks_sentence() -> str:
    """What a start of many ranks reads, counted on one rank here, and what the plan says of the run."""
    return "\n\n".join(_sentences())


def _sentences() -> Iterator[str]:
    told = subprocess.run([sys.executable, CONTENDERS / "files_of_a_rank.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = json.loads(told.splitlines()[-1])
    nodes = _RANKS // _RANKS_A_NODE
    yield (
        f"The imports of a rank open {found['opened']:,} files ({found['modules']:,} modules, {found['libraries']:,} libraries;"
        f" {found['bytes'] / 1e6:,.0f} MB at most). {_RANKS} ranks on {nodes} nodes: {found['opened'] * _RANKS / 1e6:.2f} million opens and"
        f" {found['bytes'] * nodes / 1e9:,.0f} GB from a shared file system, if each node reads a file once."
    )
    plan = subprocess.run(
        [sys.executable, "-m", "recipes.plan", "--recipe", "gams/focus", "--gpu", "a100-64gb", "--gpus", str(_RANKS), "--best", "1"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [line.strip() for line in plan.stdout.splitlines() if "tokens/s per device" in line]
    yield f"`recipes.plan --recipe gams/focus --gpu a100-64gb --gpus {_RANKS}`: {' '.join(lines[0].split())}." if lines else ""


if __name__ == "__main__":
    command.run(main)
