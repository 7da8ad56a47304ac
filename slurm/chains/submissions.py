"""Which submission of a run is the current one, so that two never train in the same directory.

Each submission claims the next number by one atomic rename of a directory that is complete already, which holds on shared
file systems too, and nothing is ever removed, so nobody can remove another's claim.  The highest number is the current one: it is alive
while Slurm knows a job of it, or while it is being sent.

A submission may be interrupted between the moment at which Slurm takes a job and the one at which its id is written down.  So each job has
the submission's tag as its comment, by which it is found all the same, and a link whose id was not written down leaves the run alone.

    RUN/submissions/001/claim.json   who sends it, from where
    RUN/submissions/001/jobs.json    the jobs of the chain, once Slurm has them
    RUN/submissions/001/job.sh       what was sent
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from common.artifacts import digest_bytes
from common.command import suggested
from common.plain_files import read_json, write_json
from common.process_identity import start_of
from recipes.runs.run_state import RunState, read_run_state
from slurm.chains.decision import Limits
from slurm.jobs.queue import QueuedJob, Tag, queued_jobs

SUBMISSIONS_NAME = "submissions"
RECORDING_SECONDS = 60.0  # until a job's id is seen on all nodes; it takes milliseconds, but a node may remember that a file was not there
_LOOK_AGAIN_SECONDS = 0.5


@dataclass(frozen=True)
class Claim:
    """Who sends, and what the links of the chain must know.

    Attributes:
        started: of the process, in the kernel's clock ticks since boot, as its id may be used again.
        signal_seconds: how long before the time limit the training is signalled.
        tag: of its jobs, which finds them in the queue; that of the whole array for a run that is one of several.
        place: of the run when it was claimed, without links: a copy elsewhere has no part in it.
        total_steps: of the recipe, which may make a run longer than it was; None where the job has none.
        recording_seconds: how long a job waits for its id to be written down.
    """

    host: str
    process_id: int
    started: str
    claimed_at: float
    command: tuple[str, ...]
    limits: Limits
    signal_seconds: int
    tag: Tag
    place: str
    recording_seconds: float = RECORDING_SECONDS
    total_steps: int | None = None


@dataclass(frozen=True)
class Submission:
    """A claim and the jobs that it led to, as far as they are sent."""

    number: int
    claim: Claim
    job_ids: tuple[str, ...]


def submission_dir(run_dir: Path, number: int) -> Path:
    """Directory of a submission."""
    return run_dir / SUBMISSIONS_NAME / f"{number:03d}"


def current_submission(run_dir: Path) -> Submission | None:
    """The submission with the highest number; None before the first, and where the directory is a copy of the run that was submitted."""
    number = _highest(run_dir)
    submission = _read_submission(run_dir, number) if number else None
    return submission if submission and _is_here(run_dir, submission.claim) else None


def tag_of(run_dir: Path, number: int) -> Tag:
    """The tag of the jobs of a submission, also of a run that this directory is a copy of."""
    return _read_submission(run_dir, number).claim.tag


def run_tag(run_dir: Path, number: int) -> Tag:
    """The tag of the jobs of a submission: the same for every name of the directory."""
    return Tag(f"scion-{digest_bytes(os.path.realpath(run_dir).encode())[-12:]}-{number}")


def jobs_of(*run_dirs: Path, without: str | None = None) -> list[QueuedJob]:
    """All jobs of runs that wait or run, of whichever submission, and whether or not their ids were written down.

    Args:
        without: id of a job that is not wanted.
    """
    claims = [(run_dir, _read_submission(run_dir, number).claim) for run_dir in run_dirs for number in _numbers(run_dir)]
    tags = {claim.tag for run_dir, claim in claims if _is_here(run_dir, claim)}
    return [job for job in queued_jobs(tags) if job.job_id != without]


def claim_run(
    run_dir: Path,
    *,
    command: tuple[str, ...],
    limits: Limits,
    signal_seconds: int,
    tag: Tag | None = None,
    recording_seconds: float = RECORDING_SECONDS,
    total_steps: int | None = None,
) -> Submission:
    """Make a new submission the current one.

    Args:
        tag: of its jobs; by default one of its own.

    Returns:
        The submission, without jobs.

    Raises:
        ValueError: if another submission is alive, or claims the run at the same time.
    """
    current = current_submission(run_dir)
    if current is not None:
        refuse_if_alive(run_dir, current)
    number = _highest(run_dir) + 1
    directory = submission_dir(run_dir, number)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = directory.parent / f".claim-{uuid.uuid4().hex}"
    staging.mkdir()
    claim = Claim(
        socket.gethostname(),
        os.getpid(),
        _start_of(os.getpid()),
        time.time(),
        command,
        limits,
        signal_seconds,
        tag or run_tag(run_dir, number),
        os.path.realpath(run_dir),
        recording_seconds,
        total_steps,
    )
    write_json(staging / "claim.json", asdict(claim))
    try:
        os.rename(staging, directory)  # refuses a directory that is not empty, and a claim never is
    except OSError as error:
        shutil.rmtree(staging)
        if not directory.exists():
            raise
        raise ValueError(f"another submission of {run_dir} came first; watch it with `{suggested('slurm.status', run_dir)}`") from error
    if current is not None and current.claim.place != claim.place:
        print(f"the run of {current.claim.place} was moved and continues in {claim.place}", file=sys.stderr, flush=True)
    return Submission(number, claim, ())


def record_jobs(run_dir: Path, number: int, job_ids: tuple[str, ...]) -> None:
    """Note the jobs of a submission."""
    write_json(submission_dir(run_dir, number) / "jobs.json", {"job_ids": list(job_ids)})


def is_recorded(run_dir: Path, number: int, job_id: str) -> bool:
    """Whether a job was written down by the current submission; waits while that may be under way.

    A link that was not is left over from a submission which was interrupted, and which nobody knows to be alive.
    """
    start = time.monotonic()  # the claim's time is of another machine's clock
    while (current := current_submission(run_dir)) is not None and current.number == number:
        if job_id in current.job_ids:
            return True
        if time.monotonic() - start > current.claim.recording_seconds:
            break
        time.sleep(_LOOK_AGAIN_SECONDS)
    return False


def refuse_if_alive(run_dir: Path, submission: Submission) -> None:
    """Refuse a run that has jobs, or whose jobs are being sent.

    Raises:
        ValueError: saying which.
    """
    claim = submission.claim
    is_recorded = (submission_dir(run_dir, submission.number) / "jobs.json").exists()
    if not is_recorded and (claim.host != socket.gethostname() or _start_of(claim.process_id) == claim.started):
        raise ValueError(
            f"{run_dir} is being submitted by process {claim.process_id} on {claim.host}; wait until that has ended"
            f" (if it was killed, remove {submission_dir(run_dir, submission.number)})"
        )
    if alive := jobs_of(run_dir):
        raise ValueError(
            f"{run_dir} is already submitted: {_describe(alive)}; watch it with `{suggested('slurm.status', run_dir)}`"
            f" or end it with `{suggested('slurm.stop', run_dir)}`"
        )


def _read_submission(run_dir: Path, number: int) -> Submission:
    directory = submission_dir(run_dir, number)
    content = read_json(directory / "claim.json")
    content = {"place": os.path.realpath(run_dir), **content}  # of claims from before they named it
    content |= {"limits": Limits(**content["limits"]), "command": tuple(content["command"]), "tag": Tag(**content["tag"])}
    jobs = directory / "jobs.json"
    return Submission(number, Claim(**content), tuple(read_json(jobs)["job_ids"]) if jobs.exists() else ())


def _describe(jobs: list[QueuedJob]) -> str:
    return ", ".join(f"job {job.job_id} ({job.state.lower()})" for job in jobs)


def _is_here(run_dir: Path, claim: Claim) -> bool:
    """Whether a claim is of this directory: it was made here, or of a directory that was moved here since."""
    return (
        os.path.realpath(run_dir) == claim.place
        or not os.path.exists(os.path.join(claim.place, SUBMISSIONS_NAME))  # Path.exists raises for a place that may not be looked into
        or os.path.samefile(run_dir, claim.place)
    )


def _start_of(process_id: int) -> str:
    return str(start_of(process_id) or "")


def _numbers(run_dir: Path) -> list[int]:
    return sorted(int(path.name) for path in (run_dir / SUBMISSIONS_NAME).glob("[0-9]*"))


def _highest(run_dir: Path) -> int:
    return max(_numbers(run_dir), default=0)


def read_chain_state(run_dir: Path) -> RunState:
    """What the files of a run say, with at least as many steps as the newest submission asked for; never writes."""
    submission = current_submission(run_dir)
    return read_run_state(run_dir, at_least=(submission and submission.claim.total_steps) or 0)
