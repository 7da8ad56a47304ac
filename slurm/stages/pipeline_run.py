"""A pipeline's work on a cluster: the table of its jobs, their scripts, and sending them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from common import command
from common.command import suggested
from common.lease import InUseError
from common.tables import markdown_table
from recipes.pipelines.file import tasks_of
from recipes.pipelines.work import Work
from slurm.chains.submissions import jobs_of
from slurm.jobs.job import format_time_limit
from slurm.jobs.render import render_job
from slurm.sites.cluster import load_cluster
from slurm.stages.pipeline_jobs import StageJob
from slurm.stages.pipeline_submission import plan_pipeline, submit_pipeline


def run_on(work: Work, *, cluster_name: str, settings: Sequence[str], submit: bool, show: bool) -> int:
    """Print the jobs of a pipeline's work, with `show` their scripts too; with `submit` send them.

    Args:
        cluster_name: bundled, or a YAML file.
        settings: key=value, overrides of the cluster's file.
    """
    pipeline, cluster = work.pipeline, load_cluster(cluster_name, tuple(settings))
    jobs = plan_pipeline(work, cluster)
    print(_table(work, jobs))
    if show:
        print("".join(f"\n# {job.stage}\n{render_job(job.job, cluster)}" for job in jobs), end="")
    if not jobs:
        print(f"\neverything is complete in {pipeline.root}")
    elif submit:
        job_ids = submit_pipeline(work, cluster)
        count = sum(map(len, job_ids.values()))
        print(f"\nsubmitted {count} jobs for {len(job_ids)} stages; watch them with `{suggested('slurm.status', pipeline.root)}`")
    else:
        print("\nNothing was submitted; add --submit to submit.")
    return command.DONE


def require_no_jobs(root: Path) -> None:
    """Refuse to work in a pipeline's directory beside jobs that do.

    Raises:
        InUseError: naming the first job.
    """
    if shutil.which("squeue") and (jobs := jobs_of(root)):
        raise InUseError(f"{root} has jobs in the queue, the first is {jobs[0].job_id}; wait for them, or cancel them with slurm.stop")


def _table(work: Work, jobs: Sequence[StageJob]) -> str:
    planned = {job.stage: job for job in jobs}
    rows = [_row(name, len(tasks_of(work.pipeline, name)), planned.get(name)) for name in work.pipeline.stages]
    return markdown_table(["stage", "job", "after", "tasks to run", "nodes", "tasks per node", "time limit"], rows, text_columns=3)


def _row(name: str, num_tasks: int, planned: StageJob | None) -> list[str]:
    if planned is None:
        return [name, "nothing to do", "", f"0 of {num_tasks}", "", "", ""]
    job = planned.job
    kind = f"chain of {planned.chain.links}" if planned.chain else "array" if planned.is_array else "one"
    after = ", ".join(planned.waits_for)
    limit = format_time_limit(job.time_limit_seconds)
    return [name, f"{kind}, {job.kind}", after, f"{len(planned.tasks)} of {num_tasks}", str(job.num_nodes), str(job.tasks_per_node), limit]
