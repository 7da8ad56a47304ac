"""What there is to say about a run: state, attempts, step, loss, speed, time to the end; as data and as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.tables import markdown_table
from recipes.rehearsal.prediction import read_first_steps, verdict
from recipes.runs.run_dir import is_disk_full
from recipes.runs.run_state import RunState, full_step_seconds, read_recipe
from slurm.chains import causes
from slurm.chains.attempts import Attempt, End, read_attempts, read_log
from slurm.chains.causes import Cause, cause_of_failure
from slurm.chains.decision import CONTINUE, FINISHED, Decision, Limits, decide
from slurm.chains.submissions import Submission, current_submission, jobs_of, read_chain_state, tag_of
from slurm.jobs.queue import QueuedJob, failed_nodes, job_state

RUNNING, WAITING, STOPPED, OUT_OF_LINKS, NOT_SUBMITTED = "running", "waiting", "stopped", "out of links", "not submitted"

_READMIT = "scontrol update JobId={} ExcNodeList="


@dataclass(frozen=True)
class RunReport:
    """One run at one moment.

    Attributes:
        state: finished, running, waiting, stopped, out of links (submit again) or not submitted.
        reason: why, or what happened last.
        step: newest one in the metrics, at most an attempt ahead of `saved_step`.
        seconds_to_end: of training at the speed of the last metrics; None where that is not known.
        waiting_jobs: links that have not started.
        waits_because: of the first of them, where none runs, or of one that has started and does not run: Slurm's reason, and what to do where
            there is something.
        first_step: its memory beside that of the run's rehearsal; empty where nothing was compared.
    """

    run: str
    state: str
    reason: str
    step: int
    saved_step: int
    total_steps: int | None
    loss: float | None
    tokens_per_second: float | None
    seconds_to_end: float | None
    running_job: str | None
    waiting_jobs: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    waits_because: str = ""
    first_step: str = ""


def report_run(run_dir: Path) -> RunReport:
    """Read everything; writes nothing but, of a run that has stopped, a file that is removed at once, to see whether the disk is full.

    Raises:
        ValueError: if the directory is none, or Slurm does not answer.
    """
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir} is not the directory of a run; submit one with `python -m slurm.submit`")
    submission, state = current_submission(run_dir), read_chain_state(run_dir)
    jobs = jobs_of(run_dir)
    running = next((job for job in jobs if not job.is_waiting), None)
    held = next((job for job in jobs if job.reason != "Dependency"), None)
    attempts = [_with_end(run_dir, attempt, state, jobs) for attempt in read_attempts(run_dir)]
    ended = [attempt for attempt in attempts if attempt.end]
    decision = decide(
        ended,
        saved_step=state.saved_step,
        total_steps=state.total_steps,
        stop_requested=state.stop_requested,
        limits=submission.claim.limits if submission else Limits(),
        submission=submission.number if submission else None,
    )
    metrics, state_name = state.metrics, _state(decision, jobs, running, submission)
    reason = decision.reason if ended or not attempts else "the first attempt runs"
    if state_name in (STOPPED, OUT_OF_LINKS) and is_disk_full(run_dir):  # on which nothing could be written of why
        reason += "; its disk is full now: free some space first"
    step = max(int(metrics.get("step", 0)), state.saved_step)
    return RunReport(
        run=str(run_dir),
        state=state_name,
        reason=reason,
        step=step,
        saved_step=state.saved_step,
        total_steps=state.total_steps,
        loss=metrics.get("loss"),
        tokens_per_second=metrics.get("tokens_per_second"),
        seconds_to_end=_seconds_to_end(run_dir, state, step),
        running_job=running.job_id if running else None,
        waiting_jobs=tuple(job.job_id for job in jobs if job.is_waiting),
        attempts=tuple(attempts),
        waits_because=why_it_waits(running or held or jobs[0]) if jobs else "",
        first_step=_first_step(run_dir),
    )


def render_report(report: RunReport) -> str:
    """The report as text for a terminal."""
    total = report.total_steps if report.total_steps is not None else "?"
    jobs = f", job {report.running_job}" if report.running_job else ""
    waiting = f", {len(report.waiting_jobs)} links wait" if report.waiting_jobs else ""
    numbers = [f"step {report.step} of {total}", f"step {report.saved_step} is saved"]
    if report.loss is not None:
        numbers.append(f"loss {report.loss:.4f}")
    if report.tokens_per_second is not None:
        numbers.append(f"{report.tokens_per_second:,.0f} tokens/s")
    if report.seconds_to_end:
        numbers.append(f"{_duration(report.seconds_to_end)} of training left")
    because = [report.waits_because] if report.waits_because else []
    lines = [f"{report.run}: {report.state}{jobs}{waiting}", *because, report.reason, ", ".join(numbers)]
    lines += filter(None, [report.first_step])
    if report.attempts:
        header = ["attempt", "job", "nodes", "began", "from step", "saved", "lasted", "cause of the end"]
        lines += ["", markdown_table(header, [_row(attempt) for attempt in report.attempts], text_columns=4)]
    return "\n".join(lines)


def _first_step(run_dir: Path) -> str:
    steps = read_first_steps(run_dir)
    return "; ".join(filter(None, verdict(steps)[1:])) if steps else ""


def _with_end(run_dir: Path, attempt: Attempt, state: RunState, jobs: Sequence[QueuedJob]) -> Attempt:
    mine = next((job for job in jobs if job.job_id == attempt.job_id), None)
    if attempt.end is not None or (mine is not None and not mine.is_waiting):
        return attempt
    cause = cause_of_silent_end(run_dir, attempt, is_same_job=mine is not None)
    return replace(attempt, end=End(cause.name, cause.detail, state.saved_step, None, cause.bad_nodes))


def why_it_waits(job: QueuedJob) -> str:
    """Slurm's reason, and what to do where there is something; "" of a job that runs."""
    if not job.is_waiting:
        resume = f"; `scontrol resume {job.job_id}` (an operator's command) resumes it" if job.state == "SUSPENDED" else ""
        return "" if job.state == "RUNNING" else f"job {job.job_id} is {job.state.lower()}{resume}"
    if "held" in job.reason.lower() or job.state in ("REQUEUE_HOLD", "SPECIAL_EXIT"):
        return f"job {job.job_id} is held (Slurm's reason: {job.reason}); `scontrol release {job.job_id}` lets it start"
    excluded = f"; it excludes {', '.join(job.excluded)}, which failed; `{_READMIT.format(job.job_id)}` allows it" if job.excluded else ""
    return f"job {job.job_id} waits (Slurm's reason: {job.reason}){excluded}"


def _state(decision: Decision, jobs: Sequence[QueuedJob], running: QueuedJob | None, submission: Submission | None) -> str:
    if decision.verdict == FINISHED:
        return FINISHED
    if running is not None:
        return RUNNING
    if decision.verdict != CONTINUE:
        return STOPPED
    if jobs:
        return WAITING
    return OUT_OF_LINKS if submission else NOT_SUBMITTED


def _seconds_to_end(run_dir: Path, state: RunState, step: int) -> float | None:
    recipe, speed = read_recipe(run_dir), state.metrics.get("tokens_per_second")
    if recipe is None or not speed or state.total_steps is None:
        return None
    return max(0.0, recipe.steps_of_full_batches(step, state.total_steps)) * full_step_seconds(state.metrics, recipe)


def _row(attempt: Attempt) -> list[str]:
    end = attempt.end
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(attempt.started_at))
    nodes = attempt.nodes[0] + (f" + {len(attempt.nodes) - 1}" if len(attempt.nodes) > 1 else "") if attempt.nodes else ""
    cells = [str(attempt.number), attempt.job_id, nodes, began, str(attempt.start_step)]
    if end is None:
        return [*cells, "", _duration(time.time() - attempt.started_at), "it runs"]
    lasted = _duration(end.ended_at - attempt.started_at) if end.ended_at else "?"
    return [*cells, str(end.step), lasted, f"{end.cause}: {end.detail}" if end.detail else end.cause]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def cause_of_silent_end(run_dir: Path, attempt: Attempt, *, is_same_job: bool) -> Cause:
    """The cause of the end of an attempt without one.

    Args:
        is_same_job: Slurm has started the attempt's job again, so that the job's state is that of the new attempt.
    """
    state = None if is_same_job else job_state(attempt.job_id, tag_of(run_dir, attempt.submission))
    job = attempt.job_id if attempt.job_id.isdecimal() else None  # a member of an array has another number of its own
    cause = cause_of_failure(read_log(run_dir, attempt.number), job=job, slurm_state=state, was_requeued=is_same_job)
    return confirmed_by_site(cause, run_dir, attempt)


def confirmed_by_site(cause: Cause, run_dir: Path, attempt: Attempt) -> Cause:
    """The cause as disk and Slurm confirm it: with the nodes that are lost, where the log does not name them; a disk with room is not full."""
    if cause.name == causes.DISK_FULL and not is_disk_full(run_dir):
        return Cause(causes.FAILED, cause.detail)
    if cause.name in (causes.NODE_FAILURE, causes.VANISHED) and not cause.bad_nodes:
        return Cause(cause.name, cause.detail, failed_nodes(attempt.nodes))
    return cause
