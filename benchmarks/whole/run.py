"""Rounds of all contenders of a case, in turns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.meter import Measured, measure
from benchmarks.whole.case import Case, Contender
from benchmarks.whole.results import Figure


def figures_of(case: Case, *, rounds: int, work: Path, missing: dict[str, str]) -> Iterator[Figure]:
    """Measure a case: each round takes every contender once, so that what else the machine does meets all.

    One that fails takes no further part, and what it did before is kept.

    Args:
        work: folder on the disk to be measured.
        missing: is told of each contender that cannot be had, or failed.
    """
    present = [contender for contender in case.contenders if _is_there(case, contender, missing)]
    measured: dict[str, list[Measured]] = {contender.name: [] for contender in present}
    loads: dict[str, list[float]] = {contender.name: [] for contender in present}
    rounds = min(rounds, case.most_rounds)
    for number in range(rounds):
        for contender in list(present):
            loads[contender.name].append(os.getloadavg()[0])
            try:
                found = _once(contender, work)
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                missing[f"{case.name}, {contender.name}"] = f"failed in round {number + 1}: {last_words(error)}"
                print(f"{case.name}, {contender.name} failed: {error}", file=sys.stderr, flush=True)
                loads[contender.name].pop()
                present.remove(contender)
                continue
            measured[contender.name].append(found)
            figures = f"{found.seconds:.2f} s, {found.cpu_seconds:.2f} CPU s, {found.peak_bytes / 2**20:,.0f} MiB"
            print(f"{case.name}, round {number + 1} of {rounds}, {contender.name}: {figures}", file=sys.stderr, flush=True)
    for contender in case.contenders:
        if found_all := measured.get(contender.name):
            reported_seconds = [json.loads(found.output.rpartition("\n")[2]) for found in found_all] if contender.tells_seconds else None
            yield Figure(
                case.name,
                case.amount,
                case.unit,
                contender.name,
                contender.role,
                tuple(seconds for one in reported_seconds for seconds in one)
                if reported_seconds
                else tuple(found.seconds for found in found_all),
                () if reported_seconds else tuple(found.cpu_seconds for found in found_all),
                max(found.peak_bytes for found in found_all),
                tuple(round(load, 1) for load in loads[contender.name]),
                contender.remark,
            )


def last_words(error: Exception) -> str:
    """The last line of what an error says, which of a traceback is the sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300].rstrip(".") if lines else type(error).__name__


def _once(contender: Contender, work: Path) -> Measured:
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        words = contender.command(Path(scratch) / "output")
        for word in words:
            if isinstance(word, Path):
                _read(word)
        os.sync()  # what the one before has left to write is not this one's
        try:
            return measure(words)
        finally:
            for path in Path(scratch).iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _read(path: Path) -> None:
    """Bring an input into the page cache: who reads it first would wait for the disk, and those behind it would not."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb", buffering=0) as stream:
                while stream.read(8 << 20):
                    pass


def _is_there(case: Case, contender: Contender, missing: dict[str, str]) -> bool:
    if not contender.needs:
        return True
    python = str(next(iter(contender.command(Path("output")))))
    if python and not subprocess.run([python, "-c", f"import {contender.needs}"], capture_output=True).returncode:
        return True
    reason = f"{python} has no package {contender.needs}" if python else f"--peers names no interpreter with {contender.needs}"
    missing[f"{case.name}, {contender.name}"] = f"not measured: {reason}"
    return False
