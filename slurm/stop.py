"""Stop a run cleanly: cancel its waiting jobs, and let the running one save a checkpoint and exit; of a pipeline, all runs and stages.

Submitting the run again resumes it.  Interrupting this command only ends the waiting; the run stops all the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from common import command
from common.options import add_option
from recipes.pipelines.file import output_of, tasks_of
from recipes.runs.run_state import STOP_NAME, read_run_state
from slurm.chains.submissions import current_submission, jobs_of
from slurm.jobs.queue import cancel_jobs, signal_steps
from slurm.stages.pipeline_submission import SentPipeline, read_sent

# A signal is lost while the training starts, before it listens.  Seldom, because one that meets it while it leaves may end it with an error.
_SIGNAL_AGAIN_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Ask the run to stop and wait until it has."""
    parser = command.parser(__doc__, example="python -m slurm.stop runs/sl")
    parser.add_argument("directory", type=Path, help="directory of the run or pipeline")
    add_option(parser, "--timeout SECONDS", "seconds to wait for the end of the run (default: 900)", 900.0)
    arguments = parser.parse_args(argv)
    directory = arguments.directory.resolve()
    sent = read_sent(directory)
    run_dirs = _run_dirs(sent) if sent else [directory]
    places = dict.fromkeys([directory, *run_dirs])
    of_runs = {job.job_id for job in jobs_of(*run_dirs)}
    jobs = jobs_of(*places)
    if not jobs:
        print(f"{directory} has no waiting or running job")
        return command.WRONG
    for run_dir in run_dirs:
        (run_dir / STOP_NAME).touch()
    cancel_jobs([job.job_id for job in jobs if job.is_waiting or job.job_id not in of_runs])
    if not _wait_for_end(places, timeout_seconds=arguments.timeout):
        print(f"{directory} still runs after {arguments.timeout:.0f} s; it was told to stop; see its log, or end it with scancel")
        return command.WRONG
    if sent:
        print(f"{directory}: no job of it is left")
    for run_dir in run_dirs:
        print(f"{run_dir} has stopped; step {read_run_state(run_dir).saved_step} is saved; submit it again to resume")
    return command.DONE


def _run_dirs(sent: SentPipeline) -> list[Path]:
    """The runs of a pipeline that have begun."""
    stages = [name for name, stage in sent.pipeline.stages.items() if stage.train is not None]
    outputs = [output_of(sent.pipeline, task) for stage in stages for task in tasks_of(sent.pipeline, stage)]
    return [output for output in outputs if output is not None and current_submission(output) is not None]


def _wait_for_end(places: Iterable[Path], *, timeout_seconds: float) -> bool:
    """Signal what runs until nothing does."""
    start, signalled_at = time.monotonic(), float("-inf")
    while jobs := jobs_of(*places):
        now = time.monotonic()
        if now - start > timeout_seconds:
            return False
        if now - signalled_at >= _SIGNAL_AGAIN_SECONDS:
            signalled_at = now
            for job in jobs:
                if job.state == "RUNNING":
                    signal_steps(job.job_id, "USR1")
        time.sleep(_LOOK_AGAIN_SECONDS)
    return True


if __name__ == "__main__":
    command.run(main)
