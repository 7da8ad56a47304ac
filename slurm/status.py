"""Show the state of a run (attempts and why each ended, step, loss, tokens per second, time left) or of a pipeline's stages.

Exit code 1 if a run stopped before its last step or a stage failed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from common import command
from common.options import add_option
from slurm.chains.run_report import OUT_OF_LINKS, STOPPED, render_report, report_run
from slurm.stages.pipeline_report import FAILED, render_tasks, report_tasks
from slurm.stages.pipeline_submission import read_sent


def main(argv: Sequence[str] | None = None) -> int:
    """Print the state of runs and pipelines."""
    parser = command.parser(__doc__, example="python -m slurm.status runs/sl --json")
    parser.add_argument("directory", nargs="+", type=Path, help="directories of runs or pipelines")
    add_option(parser, "--json", "print one line of JSON for each directory", False)
    arguments = parser.parse_args(argv)
    codes = [_show(directory.resolve(), as_json=arguments.json) for directory in arguments.directory]
    return max(codes)


def _show(directory: Path, *, as_json: bool) -> int:
    sent = read_sent(directory)
    if sent is not None:
        tasks = report_tasks(sent)
        print(json.dumps([asdict(task) for task in tasks]) if as_json else render_tasks(directory, tasks))
        return command.WRONG if any(task.state == FAILED for task in tasks) else command.DONE
    report = report_run(directory)
    print(json.dumps(asdict(report)) if as_json else render_report(report))
    return command.WRONG if report.state in (STOPPED, OUT_OF_LINKS) else command.DONE


if __name__ == "__main__":
    command.run(main)
