"""What of a pipeline is complete, and what is not as its stage would make it now, by manifests and records."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common import command
from common.artifacts import MANIFEST_NAME, Manifest, check_files, read_manifest
from common.cli import ROOT
from common.plain_files import read_json, write_json
from recipes.pipelines.file import Pipeline, Task, command_of, dependencies_of, output_of, recipe_of
from recipes.rules.schema import Recipe
from recipes.runs.run_dir import CHECKPOINTS_NAME, is_lengthened, recipe_changes
from recipes.runs.run_state import read_recipe, read_run_state

RECORDS_NAME = "stages"
NO_MATTER = ("output", "workers")  # what changes nothing in an output
_WAYS = "give --rerun to run it again, or choose another work_dir"


@dataclass(frozen=True)
class Record:
    """How a task ended the last time.

    Attributes:
        command: its words.
        message: of its failure, or that it has begun; "" when it is done.
        log: where everything that it wrote is.
        seconds: that it took, where that was measured.
        files: what it read that no stage made, as it was when it began (`files_read`).
    """

    command: tuple[str, ...]
    is_done: bool
    message: str
    log: str
    seconds: float | None = None
    files: Mapping[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Standing:
    """Where a task stands.

    Attributes:
        is_complete: whether its output is there, whole; of a training, whether it has come to its end.
        change: why what was made is not what the stage would make now; None where nothing speaks against it.
        is_own: whether this pipeline made it, by its records.
    """

    is_complete: bool
    change: str | None = None
    is_own: bool = True


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
    found = standing(pipeline, task)
    if found.change is not None:
        raise ValueError(f"stage {task.name}: {_place(pipeline, task)} is not what the stage would make now: {found.change}; {_WAYS}")
    return found.is_complete


def standing(pipeline: Pipeline, task: Task) -> Standing:
    """Where a task stands, by manifest and record.

    Raises:
        ValueError: if its output is there but damaged.
    """
    output, record = output_of(pipeline, task), read_record(pipeline, task)
    if pipeline.stages[task.stage].train is not None:
        assert output is not None  # checked when the pipeline was read
        return _standing_of_run(output, recipe_of(pipeline, task))
    is_done = record is not None and record.is_done
    is_there = is_done if output is None else _is_whole(output, is_recorded=is_done)
    if record is not None:  # which counts too for what was removed to save space
        return Standing(is_there, _change(pipeline, task, record) if is_there or is_done else None)
    if not is_there:
        return Standing(False)
    manifest = read_manifest(output) if output is not None else None
    assert manifest is not None  # a folder of outputs without a record is not there
    return Standing(True, difference(manifest, command_of(pipeline, task), _inputs(pipeline, task)), is_own=False)


def _standing_of_run(run_dir: Path, expected: Recipe) -> Standing:
    before = read_recipe(run_dir)
    if before is None or (expected.schedule.epochs is None and is_lengthened(before, expected)):
        return Standing(False)
    return Standing(read_run_state(run_dir).is_finished, difference_of_run(before, expected))


def _inputs(pipeline: Pipeline, task: Task) -> list[tuple[str, Manifest]]:
    """Name and manifest of each output of another stage that a task reads, of those that are there and have one."""
    found = [(need.name, output_of(pipeline, need)) for need in dependencies_of(pipeline, task)]
    manifests = [(name, read_manifest(output)) for name, output in found if output is not None and output.is_dir()]
    return [(name, manifest) for name, manifest in manifests if manifest is not None]


def manifest_of(pipeline: Pipeline, task: Task) -> Manifest | None:
    """The manifest of what a task made, also where that was removed to save space."""
    output = output_of(pipeline, task)
    places = [*([output] if output is not None else []), _manifest_dir(pipeline, task)]
    return next((manifest for place in places if place.is_dir() and (manifest := read_manifest(place)) is not None), None)


def is_there(pipeline: Pipeline, task: Task) -> bool:
    """Whether anything is left of what a task made."""
    return _place(pipeline, task).exists()


def forget(pipeline: Pipeline, task: Task) -> None:
    """Remove what a task made and its record, so that it runs again; one that is killed here is still seen as to be done."""
    if (output := output_of(pipeline, task)) is not None:
        _remove(output)
    _record_path(pipeline, task).unlink(missing_ok=True)
    shutil.rmtree(_manifest_dir(pipeline, task), ignore_errors=True)


def save_space(pipeline: Pipeline, task: Task) -> None:
    """Remove what a task made for others, which all have it, but neither its manifest nor the record; of a training the checkpoints alone."""
    output = output_of(pipeline, task)
    assert output is not None  # checked when the pipeline was read
    if (output / MANIFEST_NAME).is_file():
        kept = _manifest_dir(pipeline, task)
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(output / MANIFEST_NAME, kept / MANIFEST_NAME)
    _remove(output / CHECKPOINTS_NAME if pipeline.stages[task.stage].train is not None else output)


def _remove(directory: Path) -> None:
    aside = directory.with_name(f".{directory.name}.removed")
    shutil.rmtree(aside, ignore_errors=True)
    if directory.exists():
        directory.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


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


def files_read(pipeline: Pipeline, task: Task) -> dict[str, list[int]]:
    """Number, bytes and newest time (ns) of the files in each place outside work_dir that a task's command names."""
    found = {}
    for word in command_of(pipeline, task)[3:]:
        path = Path(word.rpartition("=")[2])
        if path.is_absolute() and path.exists() and not path.is_relative_to(pipeline.root):
            states = [file.stat() for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
            found[str(path)] = [
                len(states),
                sum(state.st_size for state in states),
                max((state.st_mtime_ns for state in states), default=0),
            ]
    return found


def _change(pipeline: Pipeline, task: Task, record: Record) -> str | None:
    if (change := changed_options(record.command, command_of(pipeline, task))) is not None:
        return change
    now = files_read(pipeline, task)  # what was removed since has been read
    changed = [path for path, was in record.files.items() if now.get(path, was) != was]
    return f"{changed[0]} has changed since it was read" if changed else None


def changed_options(before: Sequence[str], now: Sequence[str]) -> str | None:
    """What is different between two commands, option by option; None where that does not touch the output."""
    was, expected = _options(before), _options(now)
    changes = [
        f"{option or 'command'} {was.get(option, 'none')} -> {expected.get(option, 'none')}"
        for option in (*expected, *(was.keys() - expected))
        if was.get(option) != expected.get(option)
    ]
    return "; ".join(changes) or None


def _options(words: Sequence[str]) -> dict[str, str]:
    """Option -> its values as a shell takes them; what comes before the first option under ""."""
    found: dict[str, list[str]] = {"": []}
    values = found[""]
    for word in words[2:]:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            values = found.setdefault(option, [])
            values += [value] if equals else []
        else:
            values.append(word)
    return {option: shlex.join(given) for option, given in found.items() if option.removeprefix("--") not in NO_MATTER}


def _place(pipeline: Pipeline, task: Task) -> Path:
    return output_of(pipeline, task) or _record_path(pipeline, task)


def _record_path(pipeline: Pipeline, task: Task) -> Path:
    return pipeline.root / RECORDS_NAME / f"{task.name.replace('/', '_')}.json"


def _manifest_dir(pipeline: Pipeline, task: Task) -> Path:
    return _record_path(pipeline, task).with_suffix("")


def difference(manifest: Manifest, words: Sequence[str], inputs: Sequence[tuple[str, Manifest]]) -> str | None:
    """What speaks against an output being that of a command, None where nothing does.

    Args:
        words: of the command: `python -m MODULE ...`.
        inputs: name and manifest of each output of another stage that it reads.
    """
    module = words[2]
    if manifest.stage != module:
        return f"it was written by {manifest.stage}, not by {module}"
    expected, default = command.arguments_of(importlib.import_module(module).main, words[3:])
    for name in sorted((expected.keys() | manifest.arguments.keys()) - set(NO_MATTER)):
        if name not in expected:
            return f"its manifest says {name}={manifest.arguments[name]!r}, which is not among the arguments of {module}"
        made = manifest.arguments.get(name, default[name])
        if _plain(made) != _plain(expected[name]):
            return f"it was made with {name}={made!r}, and the stage has {_plain(expected[name])!r}"
    for name, read in inputs:
        if read.digest not in manifest.inputs.values():
            return f"it was not made from the present output of stage {name}"
    return None


def difference_of_run(before: Recipe, expected: Recipe) -> str | None:
    """What speaks against a finished run being that of a recipe, None where nothing does."""
    if expected.schedule.epochs is not None:  # a run records the steps that its passes have
        before = replace(before, freeze=expected.freeze, schedule=replace(before.schedule, max_steps=expected.schedule.max_steps))
    return "; ".join(recipe_changes(before, expected)) or None


def _plain(value: Any) -> Any:
    """A value as a manifest has it, with the same path for every way to write it."""
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, str | Path) and (ROOT / value).exists():
        return os.path.realpath(ROOT / value)
    return str(value) if isinstance(value, Path) else value
