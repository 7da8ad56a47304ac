"""A training run as a chain of jobs, each of which resumes where the one before stopped.

All links are submitted at once, each waiting for all before it to end in any way; nothing has to run on the login node.  Each asks
the files of the run whether there is anything left to do (`slurm.link`, `slurm.chains.decision`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.options import option
from common.plain_files import write_json
from recipes.runs.run_state import STOP_NAME
from slurm.chains.attempts import ATTEMPTS_NAME, read_attempts
from slurm.chains.decision import Limits
from slurm.chains.submissions import (
    RECORDING_SECONDS,
    Submission,
    claim_run,
    read_chain_state,
    record_jobs,
    run_tag,
    submission_dir,
)
from slurm.jobs.job import Job
from slurm.jobs.queue import Tag, send_job, take_back, uninterrupted
from slurm.jobs.render import render_job
from slurm.sites.cluster import Cluster

# For the lease of recipes.train: jobs that Slurm has ended when a link starts, though processes of theirs may live on at a lost node.
ENDED_JOBS = "SCION_ENDED_JOBS"
_MAX_LINKS = 100  # each names all before it, and sites bound the jobs of a user; a hundred days are more than any run


@dataclass(frozen=True)
class ChainPlan:
    """How a run is cut into jobs.

    Attributes:
        links: jobs that are sent; each gets the time limit of the job.
        signal_seconds: how long before the time limit the training is told to save and leave; enough for one checkpoint.
        limits: how much failing ends the chain.
        recording_seconds: how long a link that starts at once waits until the submission has written its id down.
    """

    links: int = option("--links N", "number of jobs in the chain", 4)
    signal_seconds: int = option("--signal-seconds S", "seconds before the time limit at which training saves and exits", 600)
    limits: Limits = field(default_factory=Limits)
    recording_seconds: float = RECORDING_SECONDS

    def __post_init__(self) -> None:
        """Refuse a chain of nothing, and one that would fill the queue."""
        if not 1 <= self.links <= _MAX_LINKS:
            raise ValueError(f"the chain has {self.links} links; expected 1 to {_MAX_LINKS}: submitting again resumes a run")


def link_job(job: Job, run_dir: Path, plan: ChainPlan, *, submission: int, tag: Tag, after: Sequence[str] = ()) -> Job:
    """A training job as one link of a chain.

    Args:
        job: the training alone; its command must resume from the newest checkpoint and exit with 0 on SIGUSR1, as `recipes.train` does.
        tag: of the submission.
        after: dependencies of this link, beside those of the job.
    """
    link = _link(job, ("--run", str(run_dir), "--submission", str(submission)), plan, tag, after)
    ended = [attempt.job_id for attempt in read_attempts(run_dir)] + [job_id for kind in after for job_id in kind.split(":")[1:]]
    if ended:
        link = replace(link, environment={**link.environment, ENDED_JOBS: " ".join(dict.fromkeys(ended))})
    return replace(link, log_dir=run_dir / ATTEMPTS_NAME, log_name="job-%j.log")


def submit_chain(
    job: Job, cluster: Cluster, run_dir: Path, plan: ChainPlan, *, tag: Tag | None = None, total_steps: int | None = None
) -> list[str]:
    """Send all links of a run.

    Args:
        tag: of the jobs; by default one of the submission's own.
        total_steps: of the recipe: a run that has finished is extended if there are more now.

    Returns:
        The ids of the jobs, in their order; empty where the run is finished.

    Raises:
        ValueError: if the run has jobs already, or if Slurm or the cluster's limits refuse the job; nothing waits then.
    """
    render_job(link_job(job, run_dir, plan, submission=0, tag=run_tag(run_dir, 0)), cluster)  # refusals before anything is written
    state = read_chain_state(run_dir)
    if state.is_finished and state.saved_step >= (total_steps or 0):
        return []
    submission = _claim(job, run_dir, plan, tag, total_steps=total_steps)
    number, tag = submission.number, submission.claim.tag

    def send(index: int, after: Sequence[str]) -> str:
        script = submission_dir(run_dir, number) / f"link-{index + 1}.sh"
        script.write_text(render_job(link_job(job, run_dir, plan, submission=number, tag=tag, after=after), cluster), encoding="utf-8")
        return send_job(script, tag)

    return _send_links(plan, tag, send, lambda job_ids: record_jobs(run_dir, number, job_ids))


def submit_chains(
    job: Job,
    cluster: Cluster,
    run_dirs: Mapping[int, Path],
    plan: ChainPlan,
    *,
    directory: Path,
    tag: Tag,
    total_steps: Mapping[int, int | None],
) -> list[str]:
    """Send the links of several runs as job arrays; each member is a link of its own run and cancels only that run's later ones.

    Args:
        job: what every member runs; it finds its run by SLURM_ARRAY_TASK_ID.
        run_dirs: index in the array -> directory of an unfinished run.
        directory: for the scripts.
        tag: of the arrays.
        total_steps: index in the array -> steps of that run's recipe, as in `submit_chain`.

    Returns:
        The ids of the arrays, in their order.

    Raises:
        ValueError: as `submit_chain`.
    """
    runs_path = directory / f"{job.name}.runs.json"
    array = replace(_link(job, ("--runs", str(runs_path)), plan, tag, ()), array=",".join(map(str, run_dirs)))
    render_job(array, cluster)
    numbers = {
        index: _claim(job, run_dir, plan, replace(tag, array_index=index), total_steps=total_steps[index]).number
        for index, run_dir in run_dirs.items()
    }
    write_json(runs_path, {str(index): [str(run_dir), numbers[index]] for index, run_dir in run_dirs.items()})

    def send(index: int, after: Sequence[str]) -> str:
        script = directory / f"{job.name}.link-{index + 1}.sh"
        script.write_text(render_job(replace(array, dependencies=(*array.dependencies, *after)), cluster), encoding="utf-8")
        return send_job(script, tag)

    def record(job_ids: tuple[str, ...]) -> None:
        for index, run_dir in run_dirs.items():
            record_jobs(run_dir, numbers[index], tuple(f"{job_id}_{index}" for job_id in job_ids))

    return _send_links(plan, tag, send, record)


def _link(job: Job, hook: tuple[str, ...], plan: ChainPlan, tag: Tag, after: Sequence[str]) -> Job:
    return replace(
        job,
        comment=tag.comment,
        requeue=True,
        signal_seconds_before_end=plan.signal_seconds,
        dependencies=(*job.dependencies, *after),
        before=(*job.before, (sys.executable, "-m", "slurm.link", "begin", *hook)),
        after=((sys.executable, "-m", "slurm.link", "end", *hook), *job.after),
    )


def _claim(job: Job, run_dir: Path, plan: ChainPlan, tag: Tag | None, *, total_steps: int | None) -> Submission:
    (run_dir / ATTEMPTS_NAME).mkdir(parents=True, exist_ok=True)
    submission = claim_run(
        run_dir,
        command=job.command,
        limits=plan.limits,
        signal_seconds=plan.signal_seconds,
        tag=tag,
        recording_seconds=plan.recording_seconds,
        total_steps=total_steps,
    )
    (run_dir / STOP_NAME).unlink(missing_ok=True)
    return submission


def _send_links(
    plan: ChainPlan, tag: Tag, send: Callable[[int, Sequence[str]], str], record: Callable[[tuple[str, ...]], None]
) -> list[str]:
    """Send link after link, each to wait for all before it; if one is refused, those before it are taken back."""
    job_ids: list[str] = []
    try:
        for index in range(plan.links):
            with uninterrupted():
                # After all before it, not the last alone: who cancels one that waits must not let the next run beside the first.
                job_ids.append(send(index, (f"afterany:{':'.join(job_ids)}",) if job_ids else ()))
                record(tuple(job_ids))
    except BaseException:
        with uninterrupted():
            take_back(job_ids, tag)
            record(tuple(job_ids))  # so that nobody waits for a submission that came to nothing
        raise
    return job_ids
