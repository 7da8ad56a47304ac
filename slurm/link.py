"""Begin or end one link of a chain, on its first node: the work before training starts and after it has ended.

Called by the job script, not by users: `begin` decides whether there is anything to do and records the attempt; `end` records why it ended
and cancels the links that are no longer needed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from common import command
from common.options import add_option
from common.plain_files import read_json, read_text, write_json, write_text
from recipes.runs.run_dir import RECIPE_NAME
from recipes.runs.run_state import RunState, read_run_state, set_damaged_aside
from slurm.chains.attempts import Attempt, End, attempt_dir, begin_attempt, end_attempt, read_attempts, read_log
from slurm.chains.causes import DAMAGED, Cause, cause_by_slurm, cause_of_clean_end, cause_of_failure
from slurm.chains.decision import CONTINUE, Decision, SiteNode, decide, failures, nodes_to_exclude
from slurm.chains.run_report import cause_of_silent_end, confirmed_by_site
from slurm.chains.submissions import Submission, current_submission, is_recorded, jobs_of, read_chain_state
from slurm.jobs import provenance
from slurm.jobs.queue import (
    QueuedJob,
    cancel_jobs,
    daemon_starts,
    exclude_nodes,
    expand_nodes,
    gpu_count,
    job_state,
    own_job_id,
    partition_nodes,
    patient,
    seconds_left,
)

_PATIENCE_SECONDS = 600.0  # with a controller of Slurm that does not answer; giving up costs the link


def main(argv: Sequence[str] | None = None) -> int:
    """Begin or end one attempt; the exit code of `begin` says whether the training is to start."""
    parser = command.parser(__doc__, example="python -m slurm.link begin --run runs/sl --submission 1")
    parser.add_argument("moment", choices=("begin", "end"), help="before or after training")
    place = parser.add_mutually_exclusive_group(required=True)
    add_option(place, "--run", "directory of the run", type=Path)
    add_option(place, "--runs", "in a job array: file with the run and submission of each array index", type=Path)
    add_option(parser, "--submission", "number of the submission that the link belongs to; with --run", 0)
    arguments = parser.parse_args(argv)
    run_dir, submission = arguments.run, arguments.submission
    if arguments.runs:
        run, submission = read_json(arguments.runs)[os.environ["SLURM_ARRAY_TASK_ID"]]
        run_dir = Path(run)
    link = Link(run_dir, submission, os.environ, is_array=arguments.runs is not None)
    try:
        with patient(_PATIENCE_SECONDS):
            return link.begin() if arguments.moment == "begin" else link.end()
    except OSError as error:  # another may pass, and is the next link's to try
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with contextlib.suppress(ValueError):  # Slurm does not answer; the links that wait find a full disk too
            link.cancel_rest()
        raise ValueError(f"the disk of {run_dir} is full: the chain stops; free some space, then submit again") from error


class Link:
    """A job of a chain, seen from its first node."""

    def __init__(self, run_dir: Path, submission: int, environment: Mapping[str, str], *, is_array: bool) -> None:
        self._run_dir, self._number, self._environment = run_dir, submission, environment
        job_id = own_job_id(environment, is_array=is_array)
        if job_id is None:
            raise ValueError("this is not a Slurm job; submit the run with `python -m slurm.submit`")
        self._job_id, self._restart = job_id, int(environment.get("SLURM_RESTART_COUNT", "0"))

    def begin(self) -> int:
        """Record an attempt, unless there is nothing to do.

        Returns:
            0 when the training is to start, else 1.
        """
        submission = current_submission(self._run_dir)
        if submission is None or submission.number != self._number:
            _say(f"this job is of submission {self._number} of {self._run_dir}, which is not the current one; it does nothing")
            return command.WRONG
        if not is_recorded(self._run_dir, self._number, self._job_id):
            _say(f"submission {self._number} of {self._run_dir} was interrupted before it recorded this job; the job does nothing")
            return command.WRONG
        others = [job for job in self._other_jobs() if job.state == "RUNNING"]
        if others:
            _say(f"job {others[0].job_id} of this run is {others[0].state.lower()}; this one does nothing")
            return command.WRONG
        nodes = expand_nodes(self._environment.get("SLURM_JOB_NODELIST", ""))
        decision = self._close_and_decide(submission)
        if decision.verdict != CONTINUE:
            self._conclude(decision)
            return command.WRONG
        excluded = self._exclude()
        later = self._waiting()
        if later and (failed := sorted(set(nodes) & set(excluded))):
            _say(f"the allocation has {', '.join(failed)}, which failed before; the next link, job {later[0]}, takes over without them")
            return command.WRONG
        self._set_damaged_aside(contents=False)
        self._record(nodes, submission)
        return command.DONE

    def end(self) -> int:
        """Record why the attempt ended, and cancel the links that are not needed any more."""
        submission = current_submission(self._run_dir)
        attempt = _open_attempt(self._run_dir, self._job_id, self._restart)
        if submission is None or attempt is None:
            _say(f"job {self._job_id} has no running attempt in {self._run_dir}")
            return command.WRONG
        state = read_chain_state(self._run_dir)
        self._close(attempt, state, self._cause_now(attempt, state, submission))
        decision = self._close_and_decide(submission)
        if decision.verdict == CONTINUE:
            self._exclude()
        self._conclude(decision)
        return command.DONE

    def cancel_rest(self) -> None:
        """Cancel the links that wait."""
        cancel_jobs(self._waiting())

    def _set_damaged_aside(self, *, contents: bool) -> None:
        for sentence in set_damaged_aside(self._run_dir, contents=contents):
            _say(sentence)

    def _record(self, nodes: tuple[str, ...], submission: Submission) -> None:
        attempt = begin_attempt(
            self._run_dir,
            job_id=self._job_id,
            restart=self._restart,
            submission=submission.number,
            nodes=nodes,
            start_step=read_run_state(self._run_dir).saved_step,
            started_at=time.time(),
            daemon_starts=daemon_starts(nodes),
            job_log=_log_of_this_process(),
        )
        write_json(
            attempt_dir(self._run_dir, attempt.number) / "provenance.json", provenance.collect(self._environment, submission.claim.command)
        )
        _say(f"attempt {attempt.number} of {self._run_dir}: job {self._job_id} on {','.join(nodes)} from step {attempt.start_step}")

    def _cause_now(self, attempt: Attempt, state: RunState, submission: Submission) -> Cause:
        """Why the attempt of this job ended a moment ago."""
        log, job = read_log(self._run_dir, attempt.number), self._environment["SLURM_JOB_ID"]
        if self._environment.get("SCION_EXIT_CODE") != "0":
            state_of_job = job_state(self._job_id, submission.claim.tag)
            return confirmed_by_site(cause_of_failure(log, job=job, slurm_state=state_of_job), self._run_dir, attempt)
        # A training that is cancelled or preempted may have had the time to save and leave as if it had been asked to.
        by_slurm = None if state.is_finished else cause_by_slurm(log, job=job)
        if by_slurm is not None:
            return confirmed_by_site(by_slurm, self._run_dir, attempt)
        return cause_of_clean_end(
            is_finished=state.is_finished,
            stop_requested=state.stop_requested,
            seconds_left=seconds_left(self._job_id),
            signal_seconds=submission.claim.signal_seconds,
        )

    def _close_and_decide(self, submission: Submission) -> Decision:
        """Record why earlier attempts died that left no record, then decide."""
        state = read_chain_state(self._run_dir)
        for attempt in read_attempts(self._run_dir):
            if attempt.end is None:
                self._close(attempt, state, cause_of_silent_end(self._run_dir, attempt, is_same_job=attempt.job_id == self._job_id))
        return decide(
            read_attempts(self._run_dir),
            saved_step=state.saved_step,
            total_steps=state.total_steps,
            stop_requested=state.stop_requested,
            limits=submission.claim.limits,
            submission=submission.number,
        )

    def _close(self, attempt: Attempt, state: RunState, cause: Cause) -> None:
        is_now = attempt.job_id == self._job_id
        if (recipe := self._run_dir / RECIPE_NAME).exists():
            write_text(attempt_dir(self._run_dir, attempt.number) / RECIPE_NAME, read_text(recipe))
        end_attempt(
            self._run_dir, attempt, End(cause.name, cause.detail, state.saved_step, time.time() if is_now else None, cause.bad_nodes)
        )
        if cause.name == DAMAGED:  # as a rank found, which read its part
            self._set_damaged_aside(contents=True)
        detail = f" ({cause.detail})" if cause.detail else ""
        _say(f"attempt {attempt.number} ended: {cause.name}{detail}, step {state.saved_step} is saved")

    def _other_jobs(self) -> list[QueuedJob]:
        return jobs_of(self._run_dir, without=self._job_id)

    def _waiting(self) -> list[str]:
        return [job.job_id for job in self._other_jobs() if job.is_waiting]

    def _exclude(self) -> tuple[str, ...]:
        """Keep the links that wait off the nodes that failed, by what Slurm says that there is now; gives these nodes."""
        failed = failures(read_attempts(self._run_dir))
        if not failed:
            return ()
        nodes = nodes_to_exclude(failed, self._partition(failed), num_nodes=int(self._environment["SLURM_JOB_NUM_NODES"]))
        for job in self._other_jobs():
            if job.is_waiting and set(job.excluded) != set(nodes):
                exclude_nodes(job.job_id, nodes)
        return nodes

    def _partition(self, failed: Iterable[str]) -> dict[str, SiteNode]:
        """The nodes of the partition that have enough GPUs for this job."""
        found = partition_nodes(self._environment["SLURM_JOB_PARTITION"])
        nodes = {name: SiteNode(state, gpu_count(resources)) for name, (state, resources) in found.items()}
        starts = daemon_starts([name for name in failed if name in nodes])
        nodes |= {name: replace(nodes[name], daemon_start=start) for name, start in starts.items()}
        return {name: node for name, node in nodes.items() if node.gpus >= int(self._environment.get("SLURM_GPUS_ON_NODE", "0"))}

    def _conclude(self, decision: Decision) -> None:
        waiting = self._waiting()
        if decision.verdict != CONTINUE:
            cancel_jobs(waiting)
            _say(f"the chain ends: {decision.reason}")
        elif not waiting:
            _say(f"this was the last link of the submission, after {decision.reason}; submit again to resume")


def _open_attempt(run_dir: Path, job_id: str, restart: int) -> Attempt | None:
    """The attempt of this start of the job; a node that Slurm has lost may live on and end its part when the job has started again."""
    attempts = [attempt for attempt in read_attempts(run_dir) if attempt.end is None]
    return next((attempt for attempt in attempts if (attempt.job_id, attempt.restart) == (job_id, restart)), None)


def _log_of_this_process() -> Path | None:
    """The file that Slurm opened for the job's output, which is that of this process too."""
    path = Path(os.readlink("/proc/self/fd/1"))
    return path if path.is_file() else None


def _say(sentence: str) -> None:
    print(f"chain: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    command.run(main)
