"""What each stage of data preparation takes on growing amounts of one text, beside what `data_prep.plan` says from rates of a small sample of it.

It takes hours at some GB, so what is measured is kept in --work and the same command goes on behind it.  Stages are run one after the other and each at
all sizes, and what no further stage reads is removed, so the disk holds the text of two stages and the scratch of one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import linear_regression

from benchmarks.whole.line import line_through
from common import command
from common.meter import Measured
from common.plain_files import read_json
from common.tables import markdown_table
from data_prep.planning.prediction import Machines, Prediction, predict
from data_prep.planning.rates import (
    COMMANDS,
    FILES,
    LEAST_MEMORY_GIB,
    STAGES,
    Amount,
    Rates,
    finished,
    measure_rates,
    run_stage,
    write_sample,
)
from data_prep.sharing.scanning import room_of_one_worker

_HEADER = (
    "stage", "text, GB", "processor s", "plan", "largest process, MiB", "plan", "plan / measured", "output, GB", "plan", "disk meanwhile, GB", "plan",
)  # fmt: skip
_LINE_HEADER = (
    "stage",
    "processor s a GB",
    "and at once",
    "furthest off",
    "largest process, MiB a GB",
    "and at once",
    "output, GB a GB",
    "disk meanwhile, GB a GB",
)
_GREATER = (30, 1000)  # GB


class Place:
    """Where an amount of text is measured: the text, what stages leave, and the figures of those that are done."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def text_bytes(self, paths: Sequence[Path], megabytes: float) -> int:
        """Of the sample, written unless it is there."""
        if (found := self._read("sample")) is None:
            shutil.rmtree(self.directory / "sample", ignore_errors=True)
            found = {"text_bytes": write_sample(paths, self.directory, int(megabytes * 1e6))}
            self._write("sample", found)
        return int(found["text_bytes"])

    def amount(self, stage: str) -> Amount | None:
        """What was measured of a stage."""
        if (found := self._read(stage)) is None:
            return None
        return Amount(**{**found, "measured": Measured(**found["measured"])})

    def run(self, stage: str, text_bytes: int, tokenizer: Path) -> Amount:
        """Measure a stage, unless it was; one that was stopped begins anew."""
        if (amount := self.amount(stage)) is None:
            for name in (stage, f".{stage}.unfinished"):
                shutil.rmtree(self.directory / name, ignore_errors=True)
            amount = run_stage(self.directory, stage, text_bytes, tokenizer)
            self._write(stage, asdict(amount))
        for done in finished(stage):
            shutil.rmtree(self.directory / done, ignore_errors=True)
        return amount

    def _read(self, name: str) -> dict | None:
        path = self.directory / f"{name}.json"
        return read_json(path) if path.exists() else None

    def _write(self, name: str, found: Mapping[str, object]) -> None:
        partial = self.directory / f".{name}.json.partial"
        partial.write_text(json.dumps(found), encoding="utf-8")
        os.replace(partial, self.directory / f"{name}.json")


def measured_rates(paths: Sequence[Path], tokenizer: Path, work: Path, megabytes: float) -> Rates:
    """Those of a sample, measured unless an earlier run has."""
    path = work / "rates.json"
    if not path.exists():
        shutil.rmtree(work / "rates", ignore_errors=True)
        (work / "rates").mkdir(parents=True)
        measure_rates(paths, tokenizer, work / "rates", megabytes=megabytes, command="benchmarks.plan_at_sizes").write(path)
    return Rates.read(path)


def planned(rates: Rates, text_bytes: int) -> dict[str, Prediction]:
    """What the plan says of each stage for one worker, `dedup` with the least memory, and text in as many files as the sample is."""
    machines = Machines(1, 1, LEAST_MEMORY_GIB, text_bytes / FILES, room_of_one_worker())
    return {made.stage: made for made in predict(rates, text_bytes, machines)}


def rows(stage: str, amounts: Mapping[int, Amount], rates: Rates) -> Iterator[tuple[str, ...]]:
    """A row for each amount of text, which the keys give in bytes."""
    for text_bytes, amount in amounts.items():
        plan = planned(rates, text_bytes)[stage]
        pairs = [
            (f"{amount.measured.cpu_seconds:.1f}", f"{plan.cpu_seconds:.1f}"),
            (
                f"{amount.measured.peak_bytes / 2**20:,.0f}",
                f"{plan.node_bytes / 2**20:,.0f}",
                f"{plan.node_bytes / amount.measured.peak_bytes:.2f}",
            ),
            (f"{amount.output_bytes / 1e9:.3f}", f"{plan.output_bytes / 1e9:.3f}"),
            (f"{amount.scratch_bytes / 1e9:.3f}", f"{plan.scratch_bytes / 1e9:.3f}"),
        ]
        yield stage, f"{amount.text_bytes / 1e9:.3f}", *(figure for pair in pairs for figure in pair)


def lines_through(stage: str, amounts: Sequence[Amount]) -> tuple[str, ...]:
    """A row for a stage: its processor time, memory, output and disk as lines over the text."""
    text = [amount.text_bytes / 1e9 for amount in amounts]
    seconds = line_through(text, [amount.measured.cpu_seconds for amount in amounts])
    memory = line_through(text, [amount.measured.peak_bytes / 2**20 for amount in amounts])
    disk = [
        linear_regression(text, values).slope / 1e9 for values in zip(*((amount.output_bytes, amount.scratch_bytes) for amount in amounts))
    ]
    of_time = (f"{seconds.slope:.1f}", f"{seconds.start:.1f}", f"{seconds.worst:.0%}")
    return stage, *of_time, f"{memory.slope:.1f}", f"{memory.start:.0f}", *(f"{slope:.3f}" for slope in disk)


def greater(stage: str, amounts: Sequence[Amount], rates: Rates) -> tuple[str, ...]:
    """A row for a stage: processor hours and memory of more text, by the line and by the plan, in as many files."""
    text = [amount.text_bytes / 1e9 for amount in amounts]
    seconds = line_through(text, [amount.measured.cpu_seconds for amount in amounts])
    memory = line_through(text, [amount.measured.peak_bytes / 2**20 for amount in amounts])
    cells = []
    for size in _GREATER:
        plan = planned(rates, size * 10**9)[stage]
        by_line = seconds.at(size) / 3600, memory.at(size) / 1024
        cells += [f"{by_line[0]:,.2f}", f"{plan.cpu_seconds / 3600:,.2f}", f"{by_line[1]:,.1f}", f"{plan.node_bytes / 2**30:,.1f}"]
    return stage, *cells


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table in Markdown, the amounts of a stage below each other, and the lines through them."""
    parser = command.parser(
        __doc__,
        prog="benchmarks.plan_at_sizes",
        example="python -m benchmarks.plan_at_sizes --input synthetic/*.jsonl.zst --tokenizer tokenizer/ --megabytes 100 1000 4000 --work sizes/",
    )
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help="text files")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="what counts and makes tokens")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[100, 1000, 4000], metavar="N", help="default: 100 1000 4000")
    parser.add_argument("--sample", type=float, default=60, metavar="N", help="megabytes that the rates are taken from (default: 60)")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder on the disk to be used, also of an earlier run")
    arguments = parser.parse_args(argv)
    work, tokenizer = arguments.work.resolve(), arguments.tokenizer.resolve()
    rates = measured_rates(arguments.input, tokenizer, work, arguments.sample)
    places = {size: Place(work / f"{size:g}") for size in arguments.megabytes}
    table, lines, more = list[tuple[str, ...]](), list[tuple[str, ...]](), list[tuple[str, ...]]()
    for stage in STAGES:
        amounts: dict[int, Amount] = {}
        for size, place in places.items():
            text_bytes = place.text_bytes(arguments.input, size)
            before = place.amount(COMMANDS[stage]) if COMMANDS[stage] else None
            amounts[text_bytes] = place.run(stage, before.kept_bytes if before else text_bytes, tokenizer)
            print(*next(rows(stage, {text_bytes: amounts[text_bytes]}, rates)), sep="\t", flush=True)
        table += rows(stage, amounts, rates)
        if len(amounts) > 1:
            lines.append(lines_through(stage, list(amounts.values())))
            more.append(greater(stage, list(amounts.values()), rates))
    print(f"\n{markdown_table(_HEADER, table)}")
    if lines:
        of_size = ("processor h, line", "plan", "largest process, GiB, line", "plan")
        print(f"\n{markdown_table(_LINE_HEADER, lines)}")
        print(f"\n{markdown_table(('stage', *(f'{size:,} GB: {what}' for size in _GREATER for what in of_size)), more)}")
    return command.DONE


if __name__ == "__main__":
    command.run(main)
