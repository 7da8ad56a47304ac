"""Sending a pipeline: claims its directory, freezes its file, sends every stage with what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from common.plain_files import read_json, write_json
from recipes.pipelines.checks import task_problems
from recipes.pipelines.file import Pipeline, output_of, pipeline_from_mapping, recipe_of
from recipes.pipelines.local import only_run
from recipes.pipelines.planned import planned_model_of
from recipes.pipelines.running import LOGS_NAME
from recipes.pipelines.work import Choice, Work, find_work
from recipes.planner.hardware import GPUS
from recipes.planner.layout import layout_of
from recipes.planner.memory import host_refusal
from recipes.rules.schema import raise_all
from slurm.chains.chain import submit_chain, submit_chains
from slurm.chains.decision import Limits
from slurm.chains.submissions import claim_run, current_submission, record_jobs, submission_dir
from slurm.jobs.queue import Tag, send_job, take_back, uninterrupted
from slurm.jobs.render import render_job
from slurm.jobs.submission_plan import job_memory_gib
from slurm.sites.cluster import Cluster
from slurm.sites.site import check_site, require_runtime
from slurm.stages.pipeline_jobs import StageJob, dependencies, stage_jobs

FROZEN_NAME = "pipeline.json"


@dataclass(frozen=True)
class SentPipeline:
    """A pipeline as it was sent the last time, and the tag of its jobs."""

    pipeline: Pipeline
    tag: Tag

    def stage_tag(self, stage: str) -> Tag:
        """The tag of a stage's jobs."""
        return stage_tag(self.tag, stage)


def stage_tag(tag: Tag, stage: str) -> Tag:
    """The tag of a stage's jobs within that of the pipeline."""
    return Tag(f"{tag.comment}/{stage}")


def plan_pipeline(work: Work, cluster: Cluster) -> list[StageJob]:
    """The jobs for all that has to run.

    Raises:
        ValueError: if the cluster cannot run one of them, or its command or recipe would refuse.
    """
    pipeline = work.pipeline
    jobs = stage_jobs(pipeline, cluster, work.tasks, frozen_path=pipeline.root / FROZEN_NAME)
    problems = task_problems(pipeline, work.tasks, gpu=GPUS.get((cluster.gpu.gpu or "").lower()))
    raise_all(problems + _host_problems(pipeline, jobs, cluster), subject=f"the pipeline {pipeline.name}")
    for job in jobs:
        render_job(job.job, cluster)
    return jobs


def submit_pipeline(work: Work, cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """Send what has to run; gives the ids of the jobs of each stage, none where everything is complete.

    Raises:
        ValueError: as `plan_pipeline`, if the pipeline has jobs already or runs on this machine, or if Slurm refuses one; then none of them is left waiting.
    """
    pipeline, planned = work.pipeline, plan_pipeline(work, cluster)  # refusals before anything is written
    if not planned:
        return {}
    require_runtime(cluster)
    check_site([stage_job.job for stage_job in planned], cluster, must_answer=True)
    with only_run(pipeline.root):
        return _submit(pipeline, work.choice, cluster)


def _submit(pipeline: Pipeline, choice: Choice, cluster: Cluster) -> dict[str, tuple[str, ...]]:
    root = pipeline.root
    (root / LOGS_NAME).mkdir(exist_ok=True)
    submission = claim_run(root, command=(), limits=Limits(), signal_seconds=0)
    work = find_work(pipeline, choice)  # once more: since the claim nobody else can complete anything
    work.prepare()
    number, tag = submission.number, submission.claim.tag
    directory = submission_dir(root, number)
    write_json(directory / FROZEN_NAME, asdict(pipeline))
    jobs = stage_jobs(pipeline, cluster, work.tasks, frozen_path=directory / FROZEN_NAME)
    sent: dict[str, Sequence[str]] = {}
    named: dict[str, tuple[str, ...]] = {}
    try:
        for stage_job in jobs:
            own_tag = stage_tag(tag, stage_job.stage)
            ready = replace(stage_job.job, dependencies=dependencies(stage_job, jobs, sent), comment=own_tag.comment)
            with uninterrupted():
                sent[stage_job.stage] = _send(pipeline, cluster, replace(stage_job, job=ready), directory, own_tag)
                named[stage_job.stage] = _names(stage_job, sent[stage_job.stage])
                record_jobs(root, number, tuple(name for names in named.values() for name in names))
    except BaseException:
        with uninterrupted():
            take_back([job_id for job_ids in sent.values() for job_id in job_ids], tag)
            record_jobs(root, number, tuple(name for names in named.values() for name in names))
        raise
    return named


def _host_problems(pipeline: Pipeline, jobs: Sequence[StageJob], cluster: Cluster) -> list[str]:
    """Trainings whose checkpoints a node does not hold while they are saved."""
    problems = []
    for stage_job in jobs:
        if stage_job.chain is not None and cluster.gpu.gpus_per_node:
            task = stage_job.tasks[0]
            recipe = recipe_of(pipeline, task)
            model = planned_model_of(pipeline, task, recipe)
            if model is not None and recipe.parallel.check_memory:
                memory, has = job_memory_gib(stage_job.job, cluster), f"a job on {cluster.name} with so many GPUs has"
                found = host_refusal(model, layout_of(recipe), memory_gib=memory, has=has)
                problems += [f"stage {task.name}: {problem}" for problem in found]
    return problems


def read_sent(root: Path) -> SentPipeline | None:
    """The last submission of a pipeline's directory; None for a directory of something else."""
    submission = current_submission(root)
    if submission is None or not (path := submission_dir(root, submission.number) / FROZEN_NAME).exists():
        return None
    return SentPipeline(pipeline_from_mapping(read_json(path)), submission.claim.tag)


def _send(pipeline: Pipeline, cluster: Cluster, stage_job: StageJob, directory: Path, tag: Tag) -> list[str]:
    if stage_job.chain is None:
        script = directory / f"{stage_job.stage}.sh"
        script.write_text(render_job(stage_job.job, cluster), encoding="utf-8")
        return [send_job(script, tag)]
    run_dirs, steps = {}, {}
    for task in stage_job.tasks:
        output, recipe = output_of(pipeline, task), recipe_of(pipeline, task)
        assert output is not None  # checked when the pipeline was read
        run_dirs[task.index] = output
        steps[task.index] = recipe.total_steps if recipe.schedule.epochs is None else None  # else the data decides
    if stage_job.is_array:
        return submit_chains(stage_job.job, cluster, run_dirs, stage_job.chain, directory=directory, tag=tag, total_steps=steps)
    return submit_chain(stage_job.job, cluster, run_dirs[0], stage_job.chain, tag=tag, total_steps=steps[0])


def _names(stage_job: StageJob, job_ids: Sequence[str]) -> tuple[str, ...]:
    """Ids as the queue has them, of arrays each member's."""
    if not stage_job.is_array:
        return tuple(job_ids)
    return tuple(f"{job_id}_{task.index}" for job_id in job_ids for task in stage_job.tasks)
