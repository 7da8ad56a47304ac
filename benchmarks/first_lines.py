"""For how long a user of a terminal sees nothing: from the start of each command to the first thing that it shows.

The commands are those of `benchmarks.all`, on the inputs that it has made (`--prepare`).  Each is started on a terminal of its own and ended as soon as
it has shown something; processor seconds are those of the process and what it started until then.
"""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import psutil

from benchmarks.all import material_of, parser, stages_of
from benchmarks.meter import ROOT, usual_environment
from benchmarks.whole.case import Command
from benchmarks.whole.cases import cases_of
from benchmarks.whole.commands import require_inputs
from common import command
from common.tables import markdown_table

_TIMEOUT_SECONDS = 120


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, the slowest first."""
    arguments = parser("benchmarks.first_lines", __doc__).parse_args(argv)
    require_inputs(arguments)
    stages, _ = stages_of(arguments)
    material = material_of(arguments)
    rows: list[tuple[float, list[str]]] = []
    for stage in stages:
        for case in cases_of(stage, material, ""):
            ours = case.contenders[0]
            if ours.command(Path())[1] != "-m":
                continue  # no command of its own
            found = [first_line(ours.command, material.work) for _ in range(arguments.rounds)]
            seconds, cpu_seconds = (median(values) for values in zip(*((one[0], one[1]) for one in found), strict=True))
            rows.append((seconds, [case.name, f"{seconds:.2f}", f"{cpu_seconds:.2f}", found[0][2]]))
            print(f"{case.name}: {seconds:.2f} s: {found[0][2]}", file=sys.stderr, flush=True)
    cells = [row for _, row in sorted(rows, key=lambda row: -row[0])]
    print(markdown_table(["command", "s", "CPU s", "what it shows"], cells))
    return command.DONE


def first_line(words: Command, work: Path) -> tuple[float, float, str]:
    """Seconds and processor seconds until a command shows something, and that."""
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        controller, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (24, 120))  # bars are not drawn where there is no room
        start = time.monotonic()
        arguments = [str(word) for word in words(Path(scratch) / "output")]
        process = subprocess.Popen(
            arguments, cwd=ROOT, env=usual_environment(), stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
        )
        os.close(terminal)
        try:
            ready, _, _ = select.select([controller], [], [], _TIMEOUT_SECONDS)
            seconds = time.monotonic() - start
            if not ready:
                raise TimeoutError(f"{' '.join(arguments)} shows nothing in {_TIMEOUT_SECONDS} s")
            times = psutil.Process(process.pid).cpu_times()
            shown = os.read(controller, 4096).decode(errors="replace")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(controller)
            for left in Path(scratch).iterdir():
                shutil.rmtree(left, ignore_errors=True)
        line = next((line.partition("|")[0].strip() for line in shown.splitlines() if line.strip()), "")
        return seconds, times.user + times.system + times.children_user + times.children_system, line[:100]


if __name__ == "__main__":
    command.run(main)
