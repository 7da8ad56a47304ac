"""How a run is doing: attempts with the cause of each end, step, loss, tokens per second, time left.

Exit code 1 when the run has stopped before its end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from data_prep import command
from slurm.run_report import OUT_OF_LINKS, STOPPED, RunReport, render_report, report_run


def main(argv: Sequence[str] | None = None) -> int:
    """Print the state of one or more runs."""
    parser = command.parser(__doc__, prog="slurm.status", example="python -m slurm.status runs/sl --json")
    parser.add_argument("run", nargs="+", type=Path, help="directory of a run")
    parser.add_argument("--json", action="store_true", help="a line of JSON per run")
    arguments = parser.parse_args(argv)
    reports = [report_run(run.resolve()) for run in arguments.run]
    print("\n\n".join(render_report(report) for report in reports) if not arguments.json else "\n".join(map(_line, reports)))
    return command.WRONG if any(report.state in (STOPPED, OUT_OF_LINKS) for report in reports) else command.DONE


def _line(report: RunReport) -> str:
    return json.dumps(report.as_json())


if __name__ == "__main__":
    command.run(main)
