"""What preparing a corpus will take: hours, memory and disk of each stage, for an amount of text and a number of machines.

From rates that were measured: those that come with the project, or your machine's on a sample of your own text (--measure, some minutes), which
runs every stage on a quarter and on the whole of the sample and draws the line through both.  Hours are those of processors that have nothing else
to do, and of disks that keep up; the digests that one process takes alone are counted apart.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from common import command
from common.tables import markdown_table
from data_prep.deduplication.onion import MAX_ORDINAL
from data_prep.planning.prediction import Machines, Prediction, in_a_row, predict, total_disk
from data_prep.planning.rates import BUNDLED, LEAST_MEMORY_GIB, Rates, measure_rates
from data_prep.sharing.scanning import room_of_one_worker

_MOST = {"terabytes": 1e6, "nodes": 100_000, "workers": 10_000, "memory": 1e5, "file_gb": 1e6}  # more is a slip of units
_OF_PLANNING, _OF_MEASURING = ("nodes", "workers", "memory", "file_gb", "rates"), ("tokenizer", "megabytes", "work", "output")
_HEADER = ("stage", "text, GB", "processor hours", "hours", "memory of a node, GiB", "output, GB", "disk meanwhile, GB")


def plan_text(rates: Rates, predictions: Sequence[Prediction], machines: Machines) -> str:
    """The table in Markdown, and what it rests on."""
    usual = in_a_row(predictions)
    rows = [_row(made) for made in usual]
    sums = [sum(getattr(made, name) for made in usual) for name in ("cpu_seconds", "seconds")]
    most = max(made.node_bytes for made in usual)
    rows.append(("all", "", _hours(sums[0]), _hours(sums[1]), f"{most / 2**30:,.1f}", f"{total_disk(usual) / 1e9:,.1f} with scratch", ""))
    rows += [(f"{made.stage}, instead", *_row(made)[1:]) for made in predictions if made not in usual]
    each = (
        f"{machines.nodes} node{'s' * (machines.nodes > 1)} of {machines.workers} worker{'s' * (machines.workers > 1)}, {machines.memory_gib:g} GiB"
        f" for each in deduplication, files of up to {machines.file_bytes / 1e9:g} GB"
    )
    if machines.is_one_worker:
        each += (
            f"; up to {machines.kept_bytes / 2**30:.1f} GiB, an eighth of what is free here, for text that clean --filters web reads twice"
        )
    return f"{each}\n\n{markdown_table(_HEADER, rows)}\n\n{_parts(rates, usual)}Rates: {rates.sample}; {rates.machine}\n  {rates.command}\n"


def _parts(rates: Rates, usual: Sequence[Prediction]) -> str:
    """A sentence where `dedup` could not take all lines at once."""
    lines = rates.lines_per_byte * next((made.text_bytes for made in usual if made.stage == "dedup"), 0)
    if lines <= MAX_ORDINAL:
        return ""
    return (
        f"dedup decides on 4.29 billion lines at most, and these are about {lines / 1e9:,.3g} billion: give it the text in"
        f" {ceil(lines / MAX_ORDINAL)} parts, or --paragraphs document.\n\n"
    )


def _row(made: Prediction) -> tuple[str, ...]:
    return (
        made.stage, f"{made.text_bytes / 1e9:,.1f}", _hours(made.cpu_seconds), _hours(made.seconds), f"{made.node_bytes / 2**30:,.1f}",
        f"{made.output_bytes / 1e9:,.1f}", f"{made.scratch_bytes / 1e9:,.1f}",
    )  # fmt: skip


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.3g}"


def main(argv: Sequence[str] | None = None) -> int:
    """Plan, or measure the rates for it."""
    parser = command.parser(
        __doc__, prog="data_prep.plan", example="python -m data_prep.plan --terabytes 2 --nodes 8 --workers 64 --memory 4"
    )
    what = parser.add_argument_group("plan")
    what.add_argument("--terabytes", type=float, metavar="N", help="of text (UTF-8, without compression)")
    what.add_argument("--nodes", type=int, default=1, metavar="N", help="machines (default: 1)")
    what.add_argument("--workers", type=int, default=1, metavar="N", help="processes of each (default: 1)")
    what.add_argument("--memory", type=float, default=2.0, metavar="GIB", help="of a worker, for deduplication (default: 2)")
    what.add_argument("--file-gb", type=float, default=1.0, metavar="N", help="text of the largest input file (default: 1)")
    what.add_argument("--rates", type=Path, default=BUNDLED, metavar="FILE", help="measured rates (default: those of the project)")
    how = parser.add_argument_group("measure")
    how.add_argument("--measure", type=Path, nargs="+", metavar="FILE", help="text files to take a sample from")
    how.add_argument("--tokenizer", type=Path, metavar="DIR", help="what counts and makes tokens")
    how.add_argument("--megabytes", type=float, default=64, metavar="N", help="of the sample (default: 64)")
    how.add_argument("--work", type=Path, metavar="DIR", help="folder for the sample, on the disk to be used (default: the system's)")
    how.add_argument("--output", type=Path, metavar="FILE", help="where the rates go")
    arguments = parser.parse_args(argv)
    if (arguments.measure is None) == (arguments.terabytes is None):
        raise ValueError("give either --terabytes N to plan, or --measure FILE... to take the rates of this machine")
    _require_used(arguments, parser)
    if arguments.measure is not None:
        return _measure(arguments.measure, arguments.tokenizer, arguments.work, arguments.megabytes, arguments.output, argv)
    for name, most in _MOST.items():
        value = getattr(arguments, name)
        if not 0 < value < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} is {value:g}; expected a number above 0")
        if value > most:
            raise ValueError(f"--{name.replace('_', '-')} is {value:g}; expected at most {most:,.0f}")
    if arguments.memory < LEAST_MEMORY_GIB:
        raise ValueError(f"--memory is {arguments.memory:g} GiB; dedup takes at least {LEAST_MEMORY_GIB:g} for each worker")
    machines = Machines(arguments.nodes, arguments.workers, arguments.memory, arguments.file_gb * 1e9)
    if machines.is_one_worker:
        machines = replace(machines, kept_bytes=room_of_one_worker())
    rates = Rates.read(arguments.rates)
    print(plan_text(rates, predict(rates, arguments.terabytes * 1e12, machines), machines), end="")
    return command.DONE


def _require_used(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse options of the other half of the command, which nothing would use.

    Raises:
        ValueError: naming them.
    """
    planning = arguments.terabytes is not None
    given = [name for name in (_OF_MEASURING if planning else _OF_PLANNING) if getattr(arguments, name) != parser.get_default(name)]
    if given:
        others = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"--{'terabytes' if planning else 'measure'} does not use {others}; leave it out")


def _measure(
    paths: list[Path], tokenizer: Path | None, work: Path | None, megabytes: float, output: Path | None, argv: Sequence[str] | None
) -> int:
    if tokenizer is None or output is None:
        raise ValueError("--measure needs --tokenizer DIR and --output FILE")
    if megabytes < 1:
        raise ValueError(f"--megabytes is {megabytes:g}; expected at least 1")
    if output.exists():
        raise ValueError(f"{output} exists; remove it or choose another --output")
    for folder, option in ((output.parent, "--output"), (work, "--work")):  # now, and not when all has been measured
        if folder is not None and not folder.is_dir():
            raise ValueError(f"the folder {folder} of {option} does not exist; make it, or choose another")
    said = shlex.join(["python", "-m", "data_prep.plan", *(sys.argv[1:] if argv is None else argv)])
    with tempfile.TemporaryDirectory(dir=work.resolve() if work is not None else None) as place:  # commands are run elsewhere
        rates = measure_rates(paths, tokenizer.resolve(), Path(place), megabytes=megabytes, command=said)
    rates.write(output)
    for rate in rates.stages:
        print(f"{rate.stage}: {1000 / max(rate.seconds_per_gb, 1e-9):.1f} MB a processor second, {rate.peak_bytes / 2**20:,.0f} MiB")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
