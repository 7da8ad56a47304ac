"""The directory of a run: its recipe, its metrics, its checkpoints, where to resume, and whether a run may."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from dataclasses import asdict, replace
from pathlib import Path

from common import command
from common.artifacts import MANIFEST_NAME, check_files, digest_bytes, read_manifest
from common.plain_files import read_json
from recipes.numbers import arithmetic
from recipes.rules.inputs import RunInputs
from recipes.rules.schema import Recipe, recipe_from_mapping

RECIPE_NAME = "recipe.json"
CHECKPOINTS_NAME = "checkpoints"
METRICS_NAME = "metrics.jsonl"
CONTEXT_NAME = "context"
WANDB_NAME = "wandb"  # what the library itself calls it
TENSORBOARD_NAME = "tensorboard"
START_NAME = "start"  # the checkpoint that a Hugging Face folder was converted to
_PROBE_BYTES = 8 << 20

# What may differ between the parts of an interrupted run: an allocation of another size, and what is written when.
_LENGTH = ("schedule.max_steps", "schedule.train_tokens", "schedule.epochs")  # a run may become longer
_MAY_CHANGE = ("parallel.", "recomputation", "run.", "schedule.micro_batch_size", "data.num_workers")


def checkpoint_name(step: int) -> str:
    """Directory name of the checkpoint after `step` optimizer steps."""
    return f"step_{step:07d}"


def complete_checkpoints(run_dir: Path) -> list[str]:
    """Names of the checkpoints that are written whole, in the order of their steps.

    A checkpoint gets its name last, and its manifest before that.
    """
    return sorted(path.parent.name for path in (run_dir / CHECKPOINTS_NAME).glob(f"step_[0-9]*/{MANIFEST_NAME}"))


class DamagedCheckpointError(ValueError):
    """The newest checkpoint of a run is not as it was saved, which a chain of jobs answers by going back to the one before."""

    exit_code = command.DAMAGED


def newest_checkpoint(run_dir: Path, *, contents: bool = False, share: tuple[int, int] = (0, 1)) -> tuple[int, Path] | None:
    """Step and directory of the newest complete checkpoint, or None.

    Args:
        contents: also read every byte of it.
        share: number of this process, and of all that read together.

    Raises:
        DamagedCheckpointError: if it was damaged after it had been written.
    """
    found = sorted((run_dir / CHECKPOINTS_NAME).glob("step_[0-9]*"))
    if not found:
        return None
    manifest = read_manifest(found[-1])
    if manifest is None:
        raise DamagedCheckpointError(f"{found[-1]} has no manifest, so it is not complete; remove it to resume from the one before")
    try:
        check_files(found[-1], manifest, contents=contents, share=share)
    except ValueError as error:
        description = str(error).rpartition("; ")[0]
        raise DamagedCheckpointError(f"{description}; remove {found[-1]} to resume from the checkpoint before") from error
    return manifest.facts["step"], found[-1]


def measured_save_seconds(run_dir: Path) -> tuple[float, float] | None:
    """Seconds for which the newest save stopped the training, and in which it was complete; None where there is none, or no record of it."""
    for path in sorted((run_dir / CHECKPOINTS_NAME).glob("step_[0-9]*"), reverse=True):
        if (manifest := read_manifest(path)) is not None:
            stopped = manifest.facts.get("save_seconds")
            return None if stopped is None else (stopped, manifest.facts.get("write_seconds", stopped))
    return None


def is_disk_full(directory: Path) -> bool:
    """Whether not even a few MiB can be written to a directory; what a file system tells of its free space knows no quotas."""
    probe = directory / f".space.{os.getpid()}"
    try:
        with probe.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, _PROBE_BYTES)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    finally:
        with contextlib.suppress(OSError):  # of a file system that is read-only it says so, though nothing is there
            probe.unlink()
    return False


def wandb_id(run_dir: Path) -> str:
    """What Weights & Biases knows all parts of an interrupted run by."""
    return digest_bytes(str(run_dir.resolve()).encode()).replace(":", "-")


def sync_command(run_dir: Path) -> str:
    """What sends the parts of a run to Weights & Biases, to be called where there is a network."""
    return f"wandb sync {run_dir / WANDB_NAME}/offline-run-*"


def remove_left_over(run_dir: Path) -> None:
    """Remove what a killed process was writing; half-written checkpoints go when the training starts.  For the holder of the run's lease."""
    for pattern in ("recipe.*.partial", "run_id.*.partial", "metrics.partial", ".space.*", "tensorboard/.*.partial"):
        for left in run_dir.glob(pattern):
            left.unlink(missing_ok=True)


def record_recipe(run_dir: Path, recipe: Recipe, *, writes: bool = True) -> str | None:
    """Write the recipe of a new run, or check that an interrupted run had the same; it may be longer now.

    Args:
        writes: False in processes beside the one that writes.

    Returns:
        A sentence about what changes, where the run is lengthened.

    Raises:
        ValueError: naming every key that differs.
    """
    path = run_dir / RECIPE_NAME
    if not path.exists():
        if writes:
            _write_recipe(path, recipe)
        return None
    try:
        recorded = recipe_from_mapping(read_json(path))
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is not the recipe of a run ({error}); restore it (under Slurm from attempts/latest), or choose another --output"
        ) from error
    start = str(run_dir / START_NAME)
    if recipe.model.checkpoint == start != recorded.model.checkpoint and Path(recorded.model.checkpoint).name == START_NAME:
        # The run's directory was moved; that the weights are the same is checked by their digest.
        recorded = replace(recorded, model=replace(recorded.model, checkpoint=start))
        if writes:
            _write_recipe(path, recorded)
    changed = recipe_changes(recorded, recipe)
    if not changed:
        return None
    steps, new_steps = recorded.total_steps, recipe.total_steps
    if is_lengthened(recorded, recipe):
        _require_optimizer_state(run_dir, recorded, steps)
        if writes:
            _write_recipe(path, recipe)
        return _about_rate_and_data(recipe, recorded, steps, new_steps)
    hint = ", which may have more steps" if any(key.split(" ")[0] in _LENGTH for key in changed) else ""
    raise ValueError(f"{run_dir} holds a run of another recipe: {'; '.join(changed)}; choose another --output or the same recipe{hint}")


def _write_recipe(path: Path, recipe: Recipe) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{uuid.uuid4().hex}.partial")
    partial.write_text(json.dumps(asdict(recipe), indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _require_optimizer_state(run_dir: Path, recorded: Recipe, steps: int) -> None:
    newest = newest_checkpoint(run_dir)
    if newest is None or newest[0] < steps:
        return
    manifest = read_manifest(newest[1])
    if manifest is not None and not manifest.arguments.get("run", {}).get("keep_optimizer_in_last_checkpoint", True):
        raise ValueError(
            f"{newest[1]} has only weights (run.keep_optimizer_in_last_checkpoint=false), so the run cannot be extended from it;"
            " remove it to resume from the checkpoint before, or start another run from it with model.checkpoint"
        )


def _about_rate_and_data(recipe: Recipe, recorded: Recipe, steps: int, new_steps: int) -> str:
    ends, goes_on = (
        arithmetic.learning_rate(steps, schedule, steps=length)
        for schedule, length in ((recorded.schedule, steps), (recipe.schedule, new_steps))
    )
    sentence = (
        f"the run is extended from {steps:,} to {new_steps:,} steps: from here on the learning rate follows the schedule of the longer run,"
        f" which has {goes_on:.3g} behind step {steps:,} where the shorter one had {ends:.3g}"
    )
    if recipe.schedule.epochs is None:
        sentence += "; Megatron may reorder the samples for the longer run, so that some repeat before others are seen"
    return sentence


def is_lengthened(before: Recipe, now: Recipe) -> bool:
    """Whether the second recipe is that of the same run with more steps."""
    changed = recipe_changes(before, now)
    return now.total_steps > before.total_steps and all(key.split(" ")[0] in _LENGTH for key in changed)


def recipe_changes(before: Recipe, now: Recipe) -> list[str]:
    """What makes two recipes those of different runs, a few words for each key."""
    was, expected = flat_settings(asdict(before)), flat_settings(asdict(now))
    return [
        f"{key} was {was.get(key)!r} and is {expected.get(key)!r}"
        for key in (*expected, *(was.keys() - expected))
        if was.get(key) != expected.get(key) and not key.startswith(_MAY_CHANGE)
    ]


def flat_settings(content: dict[str, object], prefix: str = "") -> dict[str, object]:
    """The values of nested sections, by keys with dots."""
    flat: dict[str, object] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def check_resume(checkpoint: Path, recipe: Recipe, inputs: RunInputs) -> None:
    """Refuse to resume if the inputs of a run are no longer those that it was started with.

    Args:
        checkpoint: the newest of the run, complete.

    Raises:
        ValueError: listing all that differs.
    """
    manifest = read_manifest(checkpoint)
    assert manifest is not None, "newest_checkpoint has read it"
    problems = []
    description = read_json(checkpoint / "context" / "model.json")
    before = {"family": description["family"], **description["config"]}
    now = {"family": inputs.family, **inputs.model}
    changed = [f"{key} {before.get(key)!r} and now {now.get(key)!r}" for key in {**before, **now} if before.get(key) != now.get(key)]
    if changed:
        problems.append(f"its architecture differs from that of {recipe.model.checkpoint}: {', '.join(changed)}")
    trained, found = (facts.get("tokenizer_digest") for facts in (manifest.facts, inputs.checkpoint.facts))
    if found != trained:
        problems.append(f"it was trained with tokenizer {trained}, but {recipe.model.checkpoint} has tokenizer {found}")
    if not problems and manifest.inputs.get("checkpoint") != inputs.checkpoint.digest:
        problems.append(f"the weights in {recipe.model.checkpoint} have changed since the run started")
    for path, data in zip(recipe.data.train, inputs.train, strict=True):
        if manifest.inputs.get(path) != data.digest:
            problems.append(f"the data set {path} has changed since the run started, so that samples would be lost or repeated")
    if problems:
        raise ValueError(
            f"the run cannot resume from {checkpoint}: {'; '.join(problems)}. Choose another --output, or restore the original inputs"
        )
