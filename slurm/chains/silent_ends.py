"""Why an attempt ended that did not live to say so: its log, else what Slurm still knows of the job and its nodes."""

from __future__ import annotations

from pathlib import Path

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
    cause = cause_of_failure(read_log(run_dir, attempt.number), slurm_state=state, was_requeued=is_same_job)
    return with_failed_nodes(cause, attempt)


def with_failed_nodes(cause: Cause, attempt: Attempt) -> Cause:
    """The cause with the nodes that Slurm has lost, where it may have been a node and the log does not name it."""
    if cause.name in (causes.NODE_FAILURE, causes.VANISHED) and not cause.bad_nodes:
        return Cause(cause.name, cause.detail, failed_nodes(attempt.nodes))
    return cause
