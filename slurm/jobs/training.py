"""A training run as a job: one task per GPU, the layout that the recipe asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recipes.planner.hardware import GPUS
from recipes.rules.schema import Recipe
from slurm.jobs.job import ROOT, Job
from slurm.sites.cluster import Cluster


def training_job(
    recipe: Recipe,
    *,
    recipe_argument: str,
    overrides: Sequence[str],
    run_dir: Path,
    cluster: Cluster,
    time_limit_seconds: int,
    name: str | None = None,
) -> Job:
    """The job that trains a recipe in `run_dir`, or resumes it.

    Args:
        recipe_argument: as `recipes.train --recipe` takes it: a bundled name or a file.
        overrides: of the recipe, as given on the command line; `recipe` has them already.
        name: of the job; by default that of the run's directory.

    Raises:
        ValueError: if the recipe's paths would mean other files in the job, which runs in the checkout; if NeMo cannot use the cluster's GPUs.
    """
    require_cuda(cluster)
    run_dir = run_dir.absolute()
    if recipe_argument.endswith((".yaml", ".yml")):
        recipe_argument = str(Path(recipe_argument).absolute())
    return Job(
        name=name or run_dir.name,
        command=("python", "-m", "recipes.train", "--recipe", recipe_argument, "--output", str(run_dir), *overrides),
        time_limit_seconds=time_limit_seconds,
        log_dir=run_dir / "logs",
        num_nodes=recipe.parallel.num_nodes,
        tasks_per_node=recipe.parallel.devices_per_node,
        gpus_per_task=1 if cluster.gpu.gpus_per_node else 0,
        paths=(run_dir, *_inputs(recipe, recipe_argument)),
    )


def require_cuda(cluster: Cluster) -> None:
    """Refuse to train where NeMo cannot.

    Raises:
        ValueError: naming the GPUs, and the way that there is.
    """
    if sentence := why_no_training(cluster):
        raise ValueError(sentence)


def why_no_training(cluster: Cluster) -> str | None:
    """Why NeMo cannot use the GPUs of a cluster, and the way that there is; None where it can."""
    gpu = GPUS.get((cluster.gpu.gpu or "").lower())
    if gpu is None or gpu.maker == "NVIDIA":
        return None
    return (
        f"{cluster.name} has {gpu.maker}'s {cluster.gpu.gpu}, and NeMo is made for NVIDIA's CUDA alone: convert, transfer and evaluate there, and"
        " train with Megatron-LM (recipes.export --to megatron-lm; docs/slurm.md, AMD GPUs)"
    )


def _inputs(recipe: Recipe, recipe_argument: str) -> list[Path]:
    """Files and directories that the training reads, absolute."""
    named = [recipe.model.checkpoint, *recipe.data.train, *recipe.data.validation.values()]
    relative = [path for path in named if not Path(path).is_absolute()]
    if relative and Path.cwd() != ROOT:
        raise ValueError(
            f"{relative[0]} is a relative path, and the job runs in {ROOT}; give absolute paths, or submit from there (this is {Path.cwd()})"
        )
    files = [Path(recipe_argument)] if recipe_argument.endswith((".yaml", ".yml")) else []
    return files + [Path(path).absolute() for path in named]
