"""The jobs of a pipeline: one per stage, an array where it is repeated, a chain where it trains, with what each waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recipes.pipelines.file import Pipeline, Resources, Task, axes_of, dependencies_of, recipe_argument, recipe_of
from recipes.pipelines.running import LOGS_NAME
from slurm.chains.chain import ChainPlan
from slurm.jobs.job import GPU, Job, parse_time_limit
from slurm.jobs.training import require_cuda
from slurm.sites.cluster import Cluster


@dataclass(frozen=True)
class StageJob:
    """The job of one stage, before it is sent.

    Attributes:
        tasks: that have to run; several are an array.
        waits_for: stages whose jobs come first.
        chain: of a training.
    """

    stage: str
    tasks: tuple[Task, ...]
    waits_for: tuple[str, ...]
    job: Job
    chain: ChainPlan | None

    @property
    def is_array(self) -> bool:
        """Whether the stage is repeated, also where only one task of it has to run."""
        return self.job.array is not None


def stage_jobs(pipeline: Pipeline, cluster: Cluster, to_run: Sequence[Task], *, frozen_path: Path) -> list[StageJob]:
    """The jobs for the tasks that have to run, each after those that it waits for.

    Args:
        frozen_path: the copy of the pipeline that the jobs read.

    Raises:
        ValueError: if a recipe cannot be composed.
    """
    jobs: dict[str, StageJob] = {}
    names = [name for name in pipeline.stages if any(task.stage == name for task in to_run)]
    while len(jobs) < len(names):
        for name in names:
            tasks = tuple(task for task in to_run if task.stage == name)
            needs = {need.stage for task in tasks for need in dependencies_of(pipeline, task) if need in to_run}
            if name not in jobs and needs <= set(jobs):
                jobs[name] = _stage_job(pipeline, cluster, tasks, tuple(sorted(needs, key=names.index)), frozen_path)
    return list(jobs.values())


def dependencies(this: StageJob, others: Sequence[StageJob], job_ids: dict[str, Sequence[str]]) -> tuple[str, ...]:
    """What Slurm has to wait for before it starts a stage.

    A chain says by its files, not by exit codes, whether it got to its end, so that its followers wait for all its links, whatever
    became of them, and look for themselves.

    Args:
        job_ids: stage -> ids of its jobs, the links of a chain in their order.
    """
    found = []
    for other in others:
        if other.stage in this.waits_for:
            same_points = this.is_array and [task.point for task in this.tasks] == [task.point for task in other.tasks]
            kind = "afterany" if other.chain else "aftercorr" if same_points else "afterok"
            found.append(f"{kind}:{':'.join(job_ids[other.stage])}")
    return tuple(found)


def _stage_job(pipeline: Pipeline, cluster: Cluster, tasks: tuple[Task, ...], needs: tuple[str, ...], frozen_path: Path) -> StageJob:
    name = tasks[0].stage
    resources, training = pipeline.resources[pipeline.stages[name].resources], pipeline.stages[name].train
    is_array = bool(axes_of(pipeline, name))
    recipe_files = [path for path in [Path(recipe_argument(training.recipe))] if path.is_absolute()] if training else []
    job = Job(
        name=f"{pipeline.name}-{name}",
        command=(
            "python",
            "-m",
            "slurm.stage",
            "--pipeline",
            str(frozen_path),
            "--stage",
            name,
            "--log-dir",
            str(pipeline.root / LOGS_NAME),
        ),
        time_limit_seconds=parse_time_limit(resources.time_limit),
        log_dir=pipeline.root / LOGS_NAME,
        log_name=f"{name}-%A_%a.log" if is_array else f"{name}-%j.log",
        kind=resources.kind,
        num_nodes=resources.nodes,
        gpus_per_task=resources.gpus,
        cpus_per_task=resources.cpus,
        memory_gib=resources.memory_gib,
        outlives_nodes=resources.nodes > 1 and training is None,
        array=_array(tasks, resources) if is_array else None,
        paths=(pipeline.root, *(Path(path) for path in pipeline.paths), *recipe_files),
    )
    if training is None:
        return StageJob(name, tasks, needs, job, None)
    return StageJob(name, tasks, needs, _training_job(pipeline, cluster, tasks, job), ChainPlan(training.links, training.signal_seconds))


def _training_job(pipeline: Pipeline, cluster: Cluster, tasks: Sequence[Task], job: Job) -> Job:
    """One task per device of the recipe, which all members of an array have in common."""
    require_cuda(cluster)
    layouts = {task: _layout(pipeline, task) for task in tasks}
    num_nodes, devices_per_node = layouts[tasks[0]]
    for task, layout in layouts.items():
        if layout != (num_nodes, devices_per_node):
            raise ValueError(
                f"{task.name} wants {layout[0]} nodes x {layout[1]} tasks and {tasks[0].name} {num_nodes} x {devices_per_node}, but the members"
                " of a job array are alike; make them two stages"
            )
    gpus_per_task = 1 if cluster.gpu.gpus_per_node else 0
    return replace(job, kind=GPU, num_nodes=num_nodes, tasks_per_node=devices_per_node, gpus_per_task=gpus_per_task)


def _layout(pipeline: Pipeline, task: Task) -> tuple[int, int]:
    """Nodes and devices per node of a training's recipe."""
    parallel = recipe_of(pipeline, task).parallel
    return parallel.num_nodes, parallel.devices_per_node


def _array(tasks: Sequence[Task], resources: Resources) -> str:
    indices = ",".join(str(task.index) for task in tasks)
    return f"{indices}%{resources.at_once}" if resources.at_once else indices
