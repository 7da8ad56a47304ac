"""What the commands that measure have in common: options, tables of kept results, and stages measured one after the other."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.whole.case import Case
from benchmarks.whole.page import put_into
from benchmarks.whole.results import Figure, Results, read_results, results_of, write_results
from benchmarks.whole.run import figures_of, last_words
from common.artifacts import project_commit

_FILES = ("text", "model", "gguf", "source_text", "dictionary")


def add_arguments(parser: argparse.ArgumentParser, *, stages: Iterable[str], output: str) -> None:
    """Options of each of them.

    Args:
        output: what the output folder is of.
    """
    parser.add_argument("--text", type=Path, nargs="+", metavar="FILE", help="real documents, as data_prep reads them")
    parser.add_argument("--output", type=Path, metavar="DIR", help=f"folder of {output}")
    parser.add_argument("--only", nargs="+", choices=list(stages), metavar="STAGE", help=f"of {', '.join(stages)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="folder for inputs, on the disk to be measured (default: in --output)")
    parser.add_argument("--prepare", action="store_true", help="make the inputs, and measure nothing")
    parser.add_argument(
        "--tables", type=Path, metavar="JSON", help="print the documentation's tables of these results, and measure nothing"
    )
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="with --tables: put them between their marks in a page of the documentation too"
    )


def print_tables(arguments: argparse.Namespace, name: str, tables: Callable[[Results], str]) -> None:
    """What `--tables` asks for, between the marks of a command's name where `--into` says so."""
    found = tables(read_results(arguments.tables))
    print(found)
    if arguments.into:
        put_into(arguments.into, name, found)


def require_inputs(arguments: argparse.Namespace) -> None:
    """Raise a ValueError unless there are documents, an output folder, at least one round over some text, and all files that are named."""
    if not arguments.text or not arguments.output:
        raise ValueError("neither --tables nor both of --text and --output; give documents and a folder, or results to be shown")
    if arguments.rounds < 1 or arguments.megabytes <= 0:
        raise ValueError(f"--rounds {arguments.rounds} and --megabytes {arguments.megabytes}: expected at least one round and some text")
    for option in _FILES:
        given = getattr(arguments, option, None) or []
        for path in given if isinstance(given, list) else [given]:
            if not path.exists():
                raise ValueError(f"--{option.replace('_', '-')} {path} does not exist; look at its spelling")
    peers = getattr(arguments, "peers", "")
    if peers and not shutil.which(peers):
        raise ValueError(f"--peers {peers} is no program; name the interpreter of an environment that has them, or leave it out")


def measure_stages(
    stages: Sequence[str],
    cases_of: Callable[[str], Iterable[Case]],
    *,
    arguments: argparse.Namespace,
    work: Path,
    suffix: str,
    missing: dict[str, str],
) -> Results:
    """Stage by stage; what is measured is kept as COMMIT and the suffix in the output folder, whatever becomes of the rest.

    Args:
        missing: what was not measured, and why; gets more.
    """
    path = arguments.output / f"{project_commit() or 'unknown'}{suffix}"
    earlier = read_results(path) if path.exists() else None
    figures: list[Figure] = []
    for stage in stages:
        try:
            cases = list(cases_of(stage))
        except (ValueError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            missing[stage] = f"failed, as its inputs could not be made: {last_words(error)}"
            print(f"{stage} {missing[stage]}", file=sys.stderr, flush=True)
            cases = []
        for case in cases:
            figures += figures_of(case, rounds=arguments.rounds, work=work, missing=missing)
            write_results(results_of(figures, missing, stages=stages, earlier=earlier), path)
    results = results_of(figures, missing, stages=stages, earlier=earlier)
    write_results(results, path)
    return results
