"""Rounds of all contenders of a case, in turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.whole.cases import Case, Contender
from benchmarks.whole.results import Figure
from common.meter import Measured, measure


def figures_of(case: Case, *, rounds: int, work: Path, absent: list[str]) -> Iterator[Figure]:
    """Measure a case: each round takes every contender once, so that what else the machine does meets all.

    Args:
        work: folder on the disk to be measured.
        absent: gets a sentence for each contender that cannot be had.
    """
    present = [contender for contender in case.contenders if _is_there(contender, absent)]
    measured: dict[str, list[Measured]] = {contender.name: [] for contender in present}
    for number in range(rounds):
        for contender in present:
            found = _once(contender, work)
            measured[contender.name].append(found)
            told = f"{found.seconds:.2f} s, {found.cpu_seconds:.2f} CPU s, {found.peak_bytes / 2**20:,.0f} MiB"
            print(f"{case.name}, round {number + 1} of {rounds}, {contender.name}: {told}", file=sys.stderr, flush=True)
    for contender in present:
        found_all = measured[contender.name]
        yield Figure(
            case.name,
            case.amount,
            case.unit,
            contender.name,
            contender.role,
            tuple(found.seconds for found in found_all),
            tuple(found.cpu_seconds for found in found_all),
            max(found.peak_bytes for found in found_all),
            contender.remark,
        )


def _once(contender: Contender, work: Path) -> Measured:
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        os.sync()  # what the one before has left to write is not this one's
        try:
            return measure(contender.command(Path(scratch) / "output"))
        finally:
            for path in Path(scratch).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_there(contender: Contender, absent: list[str]) -> bool:
    if not contender.needs:
        return True
    python, *_ = contender.command(Path("output"))
    if python and not subprocess.run([python, "-c", f"import {contender.needs}"], capture_output=True).returncode:
        return True
    reason = f"{python} has no package {contender.needs}" if python else f"--peers names no interpreter with {contender.needs}"
    if (sentence := f"{contender.name} was not measured: {reason}") not in absent:
        absent.append(sentence)
    return False


def loads(before: Sequence[float]) -> tuple[float, ...]:
    """Earlier loads and the present one, of a minute."""
    return (*before, os.getloadavg()[0])
