"""Measure the cost of every stage as a user runs it, from process start to the last byte on disk, beside peers and limits on the same input.

Contenders of a case alternate over several rounds, each in its own process.  On a shared machine, CPU seconds are more reliable than wall-clock
seconds; the tables show the load.  Results are written to COMMIT.json in the output folder, so that two commits can be compared: `--against` takes
such a file, and the exit code is 1 if a case got slower or one of the project's own commands failed.  Calls at one commit fill one file, stage by stage.
`--tables COMMIT.json` measures nothing and prints the tables of the documentation.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.whole.cases import NEEDS, STAGES, cases_of
from benchmarks.whole.material import Material
from benchmarks.whole.random_checkpoint import SHAPES
from benchmarks.whole.results import Figure, Results, changes, read_results, results_of, write_results
from benchmarks.whole.run import figures_of, last_words
from benchmarks.whole.tables import changes_markdown, documentation, markdown, put_into
from common import command
from common.artifacts import project_commit

SLOWER = 1
_FILES = ("text", "model", "gguf", "source_text", "dictionary")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, keep, compare and show."""
    arguments = _parser().parse_args(argv)
    if arguments.tables:
        found = documentation(read_results(arguments.tables))
        print(found)
        if arguments.into:
            put_into(arguments.into, "benchmarks.all", found)
        return command.DONE
    _require_inputs(arguments)
    before = read_results(arguments.against) if arguments.against else None
    stages, missing = _stages(arguments)
    arguments.output.mkdir(parents=True, exist_ok=True)
    material = _material(arguments)
    if arguments.prepare:
        for stage in stages:
            cases_of(stage, material, arguments.peers)
        return command.DONE
    results = _measured(stages, missing, material, arguments)
    print(markdown(results))
    compared = changes(before, results) if before else []
    if compared:
        print(f"\n{changes_markdown(compared)}")
    failed = any("failed" in why for what, why in results.missing.items() if what in STAGES or what.endswith(", Scion"))
    return SLOWER if failed or any(change.is_slower for change in compared) else command.DONE


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__, example="python -m benchmarks.all --text novels.jsonl.gz laws.jsonl.gz --output costs/ --peers peers/bin/python"
    )
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    folder: dict[str, Any] = {"type": Path, "metavar": "DIR"}
    parser.add_argument("--text", nargs="+", help="files with real documents, in any format that data_prep reads", **file)
    parser.add_argument("--output", help="folder to write COMMIT.json to", **folder)
    parser.add_argument(
        "--only", nargs="+", choices=list(STAGES), metavar="STAGE", help=f"stages to measure: {', '.join(STAGES)} (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds (default: 3)")
    parser.add_argument("--work", help="folder for inputs, on the disk to be measured (default: in --output)", **folder)
    parser.add_argument("--prepare", action="store_true", help="make the inputs; measure nothing")
    parser.add_argument("--tables", help="print the documentation's tables of these results (a COMMIT.json); measure nothing", **file)
    parser.add_argument("--into", help="with --tables: also update the tables in this page of the documentation", **file)
    parser.add_argument("--against", help="results of another commit (a COMMIT.json) to compare with", **file)
    parser.add_argument("--peers", default="", metavar="PYTHON", help="Python interpreter with the packages of the peers installed")
    parser.add_argument("--model", help=f"Hugging Face folder of a real model, for {', '.join(NEEDS['--model'])}", **folder)
    parser.add_argument("--gguf", help="GGUF of the same model, for from_gguf", **file)
    parser.add_argument("--source-text", nargs="+", help="files with documents in the model's language, for wechsel", **file)
    parser.add_argument("--dictionary", help="bilingual dictionary (word pairs), for wechsel", **file)
    parser.add_argument(
        "--shape", choices=SHAPES, default="llama-3.2-1b", help="architecture of the checkpoint to convert (default: llama-3.2-1b)"
    )
    dtypes = ("bfloat16", "float16", "float32")
    parser.add_argument(
        "--dtype", choices=dtypes, nargs="+", default=["bfloat16"], help="data types of that checkpoint (default: bfloat16)"
    )
    parser.add_argument("--megabytes", type=float, default=25, metavar="N", help="size of the text, in MB (default: 25)")
    parser.add_argument("--language", default="slv", help="language of the text, by datatrove's code (default: slv)")
    return parser


def _require_inputs(arguments: argparse.Namespace) -> None:
    """Raise a ValueError unless there are documents, an output folder, at least one round over some text, and all files that are named."""
    if not arguments.text or not arguments.output:
        raise ValueError("--text and --output are missing; give documents and a folder, or results to show with --tables")
    if arguments.rounds < 1 or arguments.megabytes <= 0:
        raise ValueError(f"--rounds {arguments.rounds} and --megabytes {arguments.megabytes}: expected at least one round and some text")
    for option in _FILES:
        given = getattr(arguments, option) or []
        for path in given if isinstance(given, list) else [given]:
            if not path.exists():
                raise ValueError(f"--{option.replace('_', '-')} {path} does not exist; check its spelling")
    if arguments.peers and not shutil.which(arguments.peers):
        raise ValueError(
            f"--peers {arguments.peers} is not a program; name the interpreter of an environment that has them, or leave it out"
        )


def _stages(arguments: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Those that can be measured, in the order of the work, and why others cannot.

    Raises:
        ValueError: if one of these was asked for by name.
    """
    stages = [stage for stage in STAGES if stage in (arguments.only or STAGES)]
    missing = {}
    for option, needing in NEEDS.items():
        left = [stage for stage in needing if stage in stages]
        if getattr(arguments, option.removeprefix("--")) is None and left:
            if arguments.only:
                raise ValueError(f"--only {' '.join(left)} needs {option}; --help says what to give")
            missing.update(dict.fromkeys(left, f"not measured: {option} was not given"))
    return [stage for stage in stages if stage not in missing], missing


def _material(arguments: argparse.Namespace) -> Material:
    """Inputs, in the folder that the options name."""
    material = Material(
        (arguments.work or arguments.output / "work").resolve(),
        tuple(path.resolve() for path in arguments.text),
        arguments.megabytes,
        arguments.shape,
        arguments.language,
        arguments.model.resolve() if arguments.model else None,
        arguments.gguf.resolve() if arguments.gguf else None,
        tuple(path.resolve() for path in arguments.source_text) if arguments.source_text else None,
        arguments.dictionary.resolve() if arguments.dictionary else None,
        tuple(arguments.dtype),
    )
    material.require_same_inputs()
    return material


def _measured(stages: Sequence[str], missing: dict[str, str], material: Material, arguments: argparse.Namespace) -> Results:
    """Stage by stage; what is measured is kept in the output folder, whatever becomes of the rest."""
    path = arguments.output / f"{project_commit() or 'unknown'}.json"
    earlier = read_results(path) if path.exists() else None
    figures: list[Figure] = []
    for stage in stages:
        try:
            cases = cases_of(stage, material, arguments.peers)
        except (ValueError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            missing[stage] = f"failed, as its inputs could not be made: {last_words(error)}"
            print(f"{stage} {missing[stage]}", file=sys.stderr, flush=True)
            cases = []
        for case in cases:
            figures += figures_of(case, rounds=arguments.rounds, work=material.work, missing=missing)
            write_results(results_of(figures, missing, stages=stages, earlier=earlier), path)
    results = results_of(figures, missing, stages=stages, earlier=earlier)
    write_results(results, path)
    return results


if __name__ == "__main__":
    command.run(main)
