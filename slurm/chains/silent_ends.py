"""Why an attempt ended that did not live to say so: its log, else what Slurm still knows of the job and its nodes."""

from __future__ import annotations

from pathlib import Path

from recipes.runs.run_dir import is_disk_full
from slurm.chains import causes
from slurm.chains.attempts import Attempt, read_log
from slurm.chains.causes import Cause, cause_of_failure
from slurm.chains.submissions import tag_of
from slurm.jobs.queue import failed_nodes, job_state


def cause_of_silent_end(run_dir: Path, attempt: Attempt, *, is_same_job: bool) -> Cause:
    """The cause of the end of an attempt without one.

    Args:
        is_same_job: Slurm has started the attempt's job again, so that the job's state is that of the new attempt.
    """
    state = None if is_same_job else job_state(attempt.job_id, tag_of(run_dir, attempt.submission))
    job = attempt.job_id if attempt.job_id.isdecimal() else None  # a member of an array has another number of its own
    cause = cause_of_failure(read_log(run_dir, attempt.number), job=job, slurm_state=state, was_requeued=is_same_job)
    return asked_of_the_site(cause, run_dir, attempt)


def asked_of_the_site(cause: Cause, run_dir: Path, attempt: Attempt) -> Cause:
    """The cause as disk and Slurm confirm it: with the nodes that are lost, where the log does not name them; a disk with room is not full."""
    if cause.name == causes.DISK_FULL and not is_disk_full(run_dir):
        return Cause(causes.FAILED, cause.detail)
    if cause.name in (causes.NODE_FAILURE, causes.VANISHED) and not cause.bad_nodes:
        return Cause(cause.name, cause.detail, failed_nodes(attempt.nodes))
    return cause
