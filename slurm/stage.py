"""Run one stage of a pipeline inside its job: check its inputs, run it, and on failure report the stage and what to do.

Called by the jobs of a pipeline, not by users.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import command
from common.command import suggested
from common.options import add_option
from common.plain_files import read_json
from recipes.pipelines.file import Pipeline, Task, axes_of, command_of, dependencies_of, pipeline_from_mapping, tasks_of
from recipes.pipelines.live_page import write_live_page
from recipes.pipelines.running import failure_sentence, last_error, note_end, note_start
from recipes.pipelines.state import is_complete, read_record
from recipes.pipelines.work import remove_unneeded
from slurm.chains.submissions import is_recorded
from slurm.jobs.queue import own_job_id


def main(argv: Sequence[str] | None = None) -> int:
    """Run one task of a pipeline."""
    parser = command.parser(__doc__, example="python -m slurm.stage --pipeline work/submissions/001/pipeline.json --stage tokenizer")
    add_option(parser, "--pipeline", "frozen copy of the pipeline", required=True, type=Path)
    add_option(parser, "--stage", "name of the stage", required=True)
    add_option(parser, "--log-dir", "directory of the job's log, named in the error message of a failure", Path("."), type=Path)
    arguments = parser.parse_args(argv)
    pipeline = pipeline_from_mapping(read_json(arguments.pipeline))
    is_array = bool(axes_of(pipeline, arguments.stage))
    task = tasks_of(pipeline, arguments.stage)[int(os.environ["SLURM_ARRAY_TASK_ID"]) if is_array else 0]
    stage = pipeline.stages[task.stage]
    over_nodes = ["slurm.ray_nodes"] if stage.train is None and pipeline.resources[stage.resources].nodes > 1 else []
    words = [sys.executable, "-m", *over_nodes, *command_of(pipeline, task)[2:]]
    job_id, submission = own_job_id(os.environ, is_array=is_array), arguments.pipeline.absolute().parent.name
    if stage.train is not None:
        os.execv(words[0], words)  # as every rank; the links of the chain say how it ended
    if job_id is not None and not is_recorded(pipeline.root, int(submission), job_id):
        print(f"pipeline: submission {submission} was interrupted or has ended, so job {job_id} does nothing", file=sys.stderr)
        return command.WRONG
    if int(os.environ.get("SLURM_PROCID", "0")):  # another node of a command with --ray; the first one records how it ends
        if is_complete(pipeline, task) or not all(is_complete(pipeline, need) for need in dependencies_of(pipeline, task)):
            return command.DONE
        os.execv(words[0], words)
    log = str(arguments.log_dir / f"{task.stage}-{job_id or 0}.log")
    return run_task(pipeline, task, words, log=log)


def run_task(pipeline: Pipeline, task: Task, words: Sequence[str], *, log: str) -> int:
    """Run one task and record how it ended; gives an exit code."""
    if is_complete(pipeline, task):
        print(f"pipeline: stage {task.name} is complete")
        return command.DONE
    if missing := [need for need in dependencies_of(pipeline, task) if not is_complete(pipeline, need)]:
        return _say_failed(task, log, f"cannot start, because stage {missing[0].name} is not complete{_why(pipeline, missing[0])}")
    note_start(pipeline, task, log=log)
    start = time.monotonic()
    code, error = _run(words)
    what = note_end(pipeline, task, code, error, log=log, seconds=round(time.monotonic() - start, 3))
    write_live_page(pipeline)
    if what is not None:
        return _say_failed(task, log, what)
    remove_unneeded(pipeline, among=dependencies_of(pipeline, task))
    print(f"pipeline: stage {task.name} is done")
    return command.DONE


def _run(words: Sequence[str]) -> tuple[int, str]:
    """Exit code of a command, and the last error that it wrote."""

    def passed_on() -> Iterator[str]:
        for line in process.stderr or ():
            sys.stderr.write(line)
            yield line

    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        error = last_error(passed_on())
    return process.returncode, error


def _say_failed(task: Task, log: str, what: str) -> int:
    print(f"pipeline: {failure_sentence(task, what, log=log)}", file=sys.stderr)
    return command.WRONG


def _why(pipeline: Pipeline, task: Task) -> str:
    if pipeline.stages[task.stage].train is not None:
        return f" (see `{suggested('slurm.status', command_of(pipeline, task)[-1])}`)"
    record = read_record(pipeline, task)
    return f" ({record.message})" if record is not None and record.message else ""


if __name__ == "__main__":
    command.run(main)
