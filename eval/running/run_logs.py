"""Scores of a run's checkpoints beside its own curves: in its TensorBoard folder, and in Weights & Biases where its recipe asks for that.

All scores are written anew each time, so a run has one evaluation in each place, whole and in the order of its steps, whenever and by
whomever its checkpoints were evaluated.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from common.plain_files import read_json
from eval.reporting.runs import Evaluated, by_training
from eval.running.results import find_results, load_result, score_names
from recipes.rules.schema import recipe_from_mapping
from recipes.runs.run_dir import RECIPE_NAME, TENSORBOARD_NAME, WANDB_NAME, wandb_id

NAME = "evaluation"
STEP_AXIS = "trainer/global_step"  # as the training's own, so that both lie over each other


def log_results(run_dir: Path, results_dir: Path, names: Collection[str]) -> list[str]:
    """Log the evaluated checkpoints of a run; returns what was written where, a sentence each.

    Args:
        run_dir: with its recipe.
        results_dir: folder of the models' folders of results.
        names: models that are checkpoints of the run; those beside them of the same training are taken too.
    """
    recipe = recipe_from_mapping(read_json(run_dir / RECIPE_NAME))
    try:
        with _alone(run_dir):
            models = checkpoints_of(results_dir, names)
            if not models:
                return [f"nothing is logged with {run_dir}: no evaluated model has a training step"]
            _to_tensorboard(run_dir / TENSORBOARD_NAME, models)
            description = [f"{len(models)} checkpoints in {run_dir / TENSORBOARD_NAME / NAME}"]
            if recipe.run.wandb_project is not None:
                description.append(_to_wandb(run_dir, models, project=recipe.run.wandb_project, name=recipe.name))
    except OSError as error:  # a run that may only be read is evaluated all the same
        return [f"nothing is logged with {run_dir}: {error}"]
    return description


def checkpoints_of(results_dir: Path, names: Collection[str]) -> list[Evaluated]:
    """Evaluated checkpoints of the training that the named models are of, by step."""
    models = [Evaluated(load_result(path), path) for path in find_results([results_dir])]
    trained = by_training([model for model in models if model.step is not None])
    by_step = {model.step: model for group in trained if any(model.name in names for model in group) for model in group}
    return [by_step[step] for step in sorted(by_step, key=lambda step: step or 0)]


def scalars(model: Evaluated) -> dict[str, float]:
    """Name -> value: bits per byte of every text and the scores of every task, each with the ends of its interval."""
    found = {f"{NAME}/{text}/bits_per_byte": (f["bits_per_byte"], f["low"], f["high"]) for text, f in model.texts.items()}
    found |= {
        f"{NAME}/{text}/pseudo_bits_per_byte": (f["pseudo_bits_per_byte"], f["low"], f["high"]) for text, f in model.pseudo_texts.items()
    }
    for task, summary in model.tasks.items():
        for metric in score_names(summary["metrics"]):
            entry = summary["metrics"][metric]
            found[f"{NAME}/{task}/{metric}"] = (entry["value"], entry["low"], entry["high"])
    named = {f"{name}{end}": value for name, values in found.items() for end, value in zip(("", "/low", "/high"), values, strict=True)}
    return {name: float(value) for name, value in named.items() if value is not None}


@contextlib.contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Keep other evaluations of the run waiting: each writes what the others have added."""
    directory = os.open(run_dir, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _to_tensorboard(directory: Path, models: Sequence[Evaluated]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    directory.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}.", dir=directory) as folder:
        written = Path(folder) / NAME
        with SummaryWriter(str(written)) as writer:
            for model in models:
                for name, value in scalars(model).items():
                    writer.add_scalar(name, value, global_step=model.step)
        shutil.rmtree(directory / NAME, ignore_errors=True)
        written.rename(directory / NAME)


def _to_wandb(run_dir: Path, models: Sequence[Evaluated], *, project: str, name: str) -> str:
    """Offline, as a run of its own in the training's project: what `recipes.runs.run_dir.sync_command` sends includes it."""
    identity = f"{wandb_id(run_dir)}-{NAME}"
    try:
        import wandb
    except ImportError:
        return f"nothing for Weights & Biases: wandb is not installed in this environment ({sys.prefix})"
    for earlier in (run_dir / WANDB_NAME).glob(f"offline-run-*-{identity}"):
        shutil.rmtree(earlier)
    settings = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
    run = wandb.init(
        project=project, name=f"{name}, {NAME}", id=identity, job_type=NAME, dir=str(run_dir), mode="offline", settings=settings
    )
    run.define_metric(STEP_AXIS)
    run.define_metric("*", step_metric=STEP_AXIS)
    for model in models:
        run.log({STEP_AXIS: model.step, **scalars(model)})
    run.finish()
    return f"for Weights & Biases in {run_dir / WANDB_NAME}, project {project}"
