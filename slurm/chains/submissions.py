"""Which submission of a run is the current one, so that two never train in the same directory.

Each submission claims the next number by one atomic rename of a directory that is complete already, which holds on shared
file systems too, and nothing is ever removed, so nobody can remove another's claim.  The highest number is the current one: it is alive
while Slurm knows a job of it, or while it is being sent.

    RUN/submissions/001/claim.json   who sends it, from where
    RUN/submissions/001/jobs.json    the jobs of the chain, once Slurm has them
    RUN/submissions/001/job.sh       what was sent
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm.chains.attempts import write_json
from slurm.chains.decision import Limits
from slurm.jobs.queue import QueuedJob, queued_jobs

SUBMISSIONS_NAME = "submissions"
_SENDING_SECONDS = 300  # a claim of another host without jobs is given up after that; sending takes a few seconds


@dataclass(frozen=True)
class Claim:
    """Who sends, and what the links of the chain must know.

    Attributes:
        started: of the process, in the kernel's clock ticks since boot, as its id may be used again.
        signal_seconds: how long before the time limit the training is signalled.
        max_excluded: how many nodes may be excluded so that the job can still start.
    """

    host: str
    process_id: int
    started: str
    claimed_at: float
    command: tuple[str, ...]
    limits: Limits
    signal_seconds: int
    max_excluded: int


@dataclass(frozen=True)
class Submission:
    """A claim and the jobs that it led to; none while they are being sent."""

    number: int
    claim: Claim
    job_ids: tuple[str, ...]


def submission_dir(run_dir: Path, number: int) -> Path:
    """Directory of a submission."""
    return run_dir / SUBMISSIONS_NAME / f"{number:03d}"


def current_submission(run_dir: Path) -> Submission | None:
    """The submission with the highest number, None before the first."""
    number = _highest(run_dir)
    if number == 0:
        return None
    directory = submission_dir(run_dir, number)
    content = json.loads((directory / "claim.json").read_text(encoding="utf-8"))
    claim = Claim(**{**content, "limits": Limits(**content["limits"]), "command": tuple(content["command"])})
    jobs = directory / "jobs.json"
    return Submission(number, claim, tuple(json.loads(jobs.read_text(encoding="utf-8"))["job_ids"]) if jobs.exists() else ())


def claim_run(run_dir: Path, *, command: tuple[str, ...], limits: Limits, signal_seconds: int, max_excluded: int) -> int:
    """Make a new submission the current one.

    Returns:
        Its number.

    Raises:
        ValueError: if another submission is alive, or claims the run at the same time.
    """
    current = current_submission(run_dir)
    if current is not None:
        refuse_if_alive(run_dir, current)
    number = (current.number if current else 0) + 1
    directory = submission_dir(run_dir, number)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = directory.parent / f".claim-{uuid.uuid4().hex}"
    staging.mkdir()
    claim = Claim(socket.gethostname(), os.getpid(), _start_of(os.getpid()), time.time(), command, limits, signal_seconds, max_excluded)
    write_json(staging / "claim.json", asdict(claim))
    try:
        os.rename(staging, directory)  # refuses a directory that is not empty, and a claim never is
    except OSError as error:
        shutil.rmtree(staging)
        if not directory.exists():
            raise
        raise ValueError(f"another submission of {run_dir} came first; watch it with `python -m slurm.status {run_dir}`") from error
    return number


def record_jobs(run_dir: Path, number: int, job_ids: tuple[str, ...]) -> None:
    """Note the jobs of a submission."""
    write_json(submission_dir(run_dir, number) / "jobs.json", {"job_ids": list(job_ids)})


def refuse_if_alive(run_dir: Path, submission: Submission) -> None:
    """Refuse a run that has jobs, or whose jobs are being sent.

    Raises:
        ValueError: saying which.
    """
    if submission.job_ids:
        if alive := queued_jobs(submission.job_ids):
            raise ValueError(
                f"{run_dir} is submitted already: {_told(alive)}; watch it with `python -m slurm.status {run_dir}`"
                f" or end it with `python -m slurm.stop {run_dir}`"
            )
    elif _is_sending(submission.claim):
        raise ValueError(
            f"{run_dir} is being submitted by process {submission.claim.process_id} on {submission.claim.host}; wait until that has ended"
        )


def _told(jobs: list[QueuedJob]) -> str:
    return ", ".join(f"job {job.job_id} ({job.state.lower()})" for job in jobs)


def _is_sending(claim: Claim) -> bool:
    """Whether the process that claimed the run is still there; a claim of a dead one holds nobody up."""
    if claim.host == socket.gethostname():
        return _start_of(claim.process_id) == claim.started
    return time.time() - claim.claimed_at < _SENDING_SECONDS


def _start_of(process_id: int) -> str:
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]  # field 22; the name in field 2 may hold spaces and brackets


def _highest(run_dir: Path) -> int:
    return max((int(path.name) for path in (run_dir / SUBMISSIONS_NAME).glob("[0-9]*")), default=0)
