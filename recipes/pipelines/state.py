"""What of a pipeline is complete, by manifests and records, and what is still to run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from common.artifacts import MANIFEST_NAME, Manifest, check_files, read_manifest
from common.plain_files import read_json, write_json
from recipes.pipelines.file import Pipeline, Task, command_of, needs_of, output_of, recipe_of, tasks_of
from recipes.pipelines.made_by import difference, difference_of_run
from recipes.runs.run_dir import is_lengthened
from recipes.runs.run_state import read_recipe, read_run_state

RECORDS_NAME = "stages"


@dataclass(frozen=True)
class Record:
    """How a task ended the last time.

    Attributes:
        command: its words.
        message: of its failure, or that it has begun; "" when it is done.
        log: where everything that it wrote is.
    """

    command: tuple[str, ...]
    is_done: bool
    message: str
    log: str


def read_record(pipeline: Pipeline, task: Task) -> Record | None:
    """The record of a task, None where it never ran to an end."""
    path = _record_path(pipeline, task)
    if not path.exists():
        return None
    content = read_json(path)
    return Record(**{**content, "command": tuple(content["command"])})


def write_record(pipeline: Pipeline, task: Task, record: Record) -> None:
    """Note how a task ended."""
    path = _record_path(pipeline, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(record))


def is_complete(pipeline: Pipeline, task: Task) -> bool:
    """Whether a task need not run again.

    Raises:
        ValueError: if its output was made by another command, with or without this pipeline, or is there but damaged.
    """
    output, record = output_of(pipeline, task), read_record(pipeline, task)
    if pipeline.stages[task.stage].train is not None:
        assert output is not None  # checked when the pipeline was read
        if not read_run_state(output).is_finished:  # recipes.train itself refuses to go on with a run of another recipe
            return False
        before, wanted = read_recipe(output), recipe_of(pipeline, task)
        assert before is not None  # or nobody could say that it is finished
        if wanted.schedule.epochs is None and is_lengthened(before, wanted):
            return False
        _refuse(task, output, difference_of_run(before, wanted))
        return True
    is_there = (
        record is not None and record.is_done if output is None else _is_whole(output, is_recorded=record is not None and record.is_done)
    )
    if is_there and record is not None and list(record.command) != command_of(pipeline, task):
        raise ValueError(
            f"stage {task.name} was made by another command, {_first_difference(record.command, command_of(pipeline, task))};"
            f" remove {output or _record_path(pipeline, task)} to make it again, or choose another work_dir"
        )
    if is_there and record is None:
        assert output is not None  # what has none is known by its record alone
        manifest = read_manifest(output)
        assert manifest is not None  # a folder of outputs without a record is not there
        _refuse(task, output, difference(manifest, command_of(pipeline, task), _inputs(pipeline, task)))
    return is_there


def _refuse(task: Task, output: Path, reason: str | None) -> None:
    if reason is not None:
        raise ValueError(
            f"stage {task.name}: {output} was not made by what the stage would run: {reason}; remove it, or choose another work_dir"
        )


def _inputs(pipeline: Pipeline, task: Task) -> list[tuple[str, Manifest]]:
    """Name and manifest of each output of another stage that a task reads, of those that are there and have one."""
    found = [(need.name, output_of(pipeline, need)) for need in needs_of(pipeline, task)]
    manifests = [(name, read_manifest(output)) for name, output in found if output is not None and output.is_dir()]
    return [(name, manifest) for name, manifest in manifests if manifest is not None]


def tasks_to_run(pipeline: Pipeline, complete: Collection[Task]) -> list[Task]:
    """What has to run: what is not complete and is wanted for itself or by something that has to run.

    An output that was removed to save space is not made again as long as everything made from it is there.
    """
    everything = [task for stage in pipeline.stages for task in tasks_of(pipeline, stage)]
    wanted_by: dict[Task, list[Task]] = {task: [] for task in everything}
    for task in everything:
        for need in needs_of(pipeline, task):
            wanted_by[need].append(task)
    runs: dict[Task, bool] = {}

    def must_run(task: Task) -> bool:
        if task not in runs:
            runs[task] = task not in complete and (not wanted_by[task] or any(must_run(other) for other in wanted_by[task]))
        return runs[task]

    return [task for task in everything if must_run(task)]


def _is_whole(output: Path, *, is_recorded: bool) -> bool:
    """Whether an output is complete: by its own manifest, or, where it is a folder of outputs, by theirs and the record of its end."""
    if not output.is_dir():
        return False
    manifest = read_manifest(output)
    if manifest is not None:
        check_files(output, manifest, contents=False)
        return True
    parts = [path.parent for path in output.glob(f"*/{MANIFEST_NAME}") if not path.parent.name.startswith(".")]
    for part in parts:
        if (part_manifest := read_manifest(part)) is not None:
            check_files(part, part_manifest, contents=False)
    return is_recorded and bool(parts)


def _first_difference(before: tuple[str, ...], now: list[str]) -> str:
    for old, new in zip(before, now):
        if old != new:
            return f"with {old!r} where it now has {new!r}"
    return f"of {len(before)} words where it now has {len(now)}"


def _record_path(pipeline: Pipeline, task: Task) -> Path:
    return pipeline.root / RECORDS_NAME / f"{task.name.replace('/', '_')}.json"
