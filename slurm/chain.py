"""A training run as a chain of jobs, each of which goes on where the one before left off.

All links are sent at once, each waiting for the end of the one before, whatever that was; nothing has to run on the login node.  Each asks
the files of the run whether there is anything left to do (`slurm.link`, `slurm.decision`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurm.attempts import ATTEMPTS_NAME
from slurm.cluster import Cluster
from slurm.decision import Limits
from slurm.job import Job
from slurm.queue import cancel_jobs, send_job
from slurm.render import render_job
from slurm.run_state import STOP_NAME, read_run_state
from slurm.submissions import claim_run, record_jobs, submission_dir


@dataclass(frozen=True)
class ChainPlan:
    """How a run is cut into jobs.

    Attributes:
        links: jobs that are sent; each gets the time limit of the job.
        signal_seconds: how long before the time limit the training is told to save and leave; enough for one checkpoint.
        limits: how much failing ends the chain.
    """

    links: int = 4
    signal_seconds: int = 600
    limits: Limits = field(default_factory=Limits)


def link_job(job: Job, run_dir: Path, plan: ChainPlan, *, submission: int, after: Sequence[str] = ()) -> Job:
    """A training job as one link of a chain.

    Args:
        job: the training alone; its command must go on from the newest checkpoint and leave with 0 on SIGUSR1, as `recipes.train` does.
        after: dependencies of this link, beside those of the job.
    """
    hook = ("--run", str(run_dir), "--submission", str(submission))
    return replace(
        job,
        log_dir=run_dir / ATTEMPTS_NAME,
        log_name="job-%j.log",
        requeue=True,
        signal_seconds_before_end=plan.signal_seconds,
        dependencies=(*job.dependencies, *after),
        before=(*job.before, (sys.executable, "-m", "slurm.link", "begin", *hook)),
        after=((sys.executable, "-m", "slurm.link", "end", *hook), *job.after),
    )


def submit_chain(job: Job, cluster: Cluster, run_dir: Path, plan: ChainPlan) -> list[str]:
    """Send all links of a run.

    Returns:
        The ids of the jobs, in their order; empty where the run is finished.

    Raises:
        ValueError: if the run has jobs already, or if Slurm or the cluster's limits refuse the job; nothing waits then.
    """
    render_job(link_job(job, run_dir, plan, submission=0), cluster)  # refusals before anything is written
    if plan.links < 1:
        raise ValueError(f"the chain has {plan.links} links; expected at least 1")
    if read_run_state(run_dir).is_finished:
        return []
    max_excluded = max(0, cluster.partition_of(job.kind).num_nodes - job.num_nodes)
    (run_dir / ATTEMPTS_NAME).mkdir(parents=True, exist_ok=True)
    number = claim_run(run_dir, command=job.command, limits=plan.limits, signal_seconds=plan.signal_seconds, max_excluded=max_excluded)
    (run_dir / STOP_NAME).unlink(missing_ok=True)
    job_ids: list[str] = []
    try:
        for index in range(plan.links):
            after = (f"afterany:{job_ids[-1]}",) if job_ids else ()
            script = submission_dir(run_dir, number) / f"link-{index + 1}.sh"
            script.write_text(render_job(link_job(job, run_dir, plan, submission=number, after=after), cluster), encoding="utf-8")
            job_ids.append(send_job(script))
            record_jobs(run_dir, number, tuple(job_ids))
    except BaseException:
        cancel_jobs(job_ids)
        raise
    return job_ids
