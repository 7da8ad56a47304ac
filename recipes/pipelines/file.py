"""A pipeline as its YAML file says it: stages, what each runs and writes, and over which values it is repeated."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.cli import ROOT
from recipes.rules.compose import compose_recipe
from recipes.rules.schema import Recipe, build_from_mapping, raise_all

_REFERENCE = re.compile(r"\{(?P<name>[A-Za-z_]\w*)(?::0(?P<width>\d+))?\}")
_OPTIONS = "_options"
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Resources:
    """What one job of a stage gets."""

    kind: str = "cpu"  # cpu or gpu: the cluster's partition
    time_limit: str = "01:00:00"
    cpus: int | None = None  # by default all of a node
    gpus: int = 0
    nodes: int = 1  # of a data command with --ray, whose tasks all of them do
    memory_gib: int | None = None  # of a node, by default all of it
    at_once: int | None = None  # members of an array that run at the same time


@dataclass(frozen=True)
class Training:
    """A stage that is a chain of training jobs; nodes and tasks are those of the recipe."""

    recipe: str  # name of a bundled recipe, or a YAML file
    overrides: str = ""  # key=value ..., in a shell's quotes where there are spaces
    links: int = 4
    signal_seconds: int = 600  # before the time limit: save and leave


@dataclass(frozen=True)
class Stage:
    """One stage: a command of this project, or a training.

    {name} in `command`, `overrides` and `output` stands for the output of another stage, for a value of an axis, or for {work_dir};
    {step:07} pads with zeros.  A stage is repeated over the axes that its output names.
    """

    command: str | None = None  # module and arguments, without --output
    train: Training | None = None
    output: str | None = None  # below work_dir; None for a command that only checks
    resources: str = "cpu"
    keep: bool = True  # false: its output, of a training the checkpoints, is removed when all that read it are complete


@dataclass(frozen=True)
class Summary:
    """Which number of a sweep is to be tabled."""

    stage: str  # whose outputs are results of eval.harness
    text: str  # its bits per byte
    rows: tuple[str, ...]  # axes that make a row each
    over: str  # axis over which mean and deviation are taken


@dataclass(frozen=True)
class Pipeline:
    """All stages of one piece of work."""

    name: str
    work_dir: str  # directory for all outputs; relative to the checkout
    stages: dict[str, Stage]
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name -> values
    options: dict[str, dict[str, str]] = field(default_factory=dict)  # axis -> value -> words that {AXIS_options} stands for, else none
    resources: dict[str, Resources] = field(default_factory=lambda: {"cpu": Resources()})
    paths: tuple[str, ...] = ()  # what stages read outside of checkout and work_dir, for containers to see
    summary: Summary | None = None

    @property
    def root(self) -> Path:
        """The directory for all outputs, absolute."""
        return Path(os.path.abspath(ROOT / self.work_dir))


@dataclass(frozen=True)
class Task:
    """One stage at one point of its axes.

    Attributes:
        index: of the point among those of the stage, in Slurm the index in the job array.
    """

    stage: str
    index: int
    point: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """For people and file names: export.method=focus.step=25."""
        return ".".join([self.stage, *(f"{axis}={value}" for axis, value in self.point)])


def pipeline_from_mapping(content: Mapping[str, Any], *, subject: str = "the pipeline") -> Pipeline:
    """A checked pipeline."""
    pipeline = build_from_mapping(Pipeline, content, subject=subject)
    problems = [problem for name in pipeline.stages for problem in _stage_problems(pipeline, name)]
    problems += [
        f"{name!r} is not a name for a stage or an axis" for name in (*pipeline.stages, *pipeline.axes) if not _NAME.fullmatch(name)
    ]
    problems += [f"{name} is both a stage and an axis" for name in pipeline.stages if name in pipeline.axes]
    if ROOT.is_relative_to(pipeline.root):
        problems.append(f"work_dir is {pipeline.work_dir!r}, the checkout or a parent of it; give a separate directory")
    for axis, by_value in pipeline.options.items():
        known = pipeline.axes.get(axis, ())
        problems += [
            f"options.{axis}.{value} names no value of the axis; {axis} has {', '.join(known) or 'none'}"
            for value in by_value
            if value not in known
        ]
    if not problems:
        problems = [*_cycles(pipeline), *_place_problems(pipeline)]
    raise_all(problems, subject=subject)
    return pipeline


def axes_of(pipeline: Pipeline, stage: str) -> tuple[str, ...]:
    """The axes over which a stage is repeated, in the pipeline's order."""
    output = pipeline.stages[stage].output
    named = _names_in(output) if output is not None else _axes_of_check(pipeline, stage)
    return tuple(axis for axis in pipeline.axes if axis in named)


def _axes_of_check(pipeline: Pipeline, stage: str) -> set[str]:
    """Those that a command without an output names, and those of the stages that it names beside them."""
    named = _names_in(pipeline.stages[stage].command or "")
    own = {axis for axis in pipeline.axes if axis in named or f"{axis}{_OPTIONS}" in named}
    outputs = (_names_in(other.output or "") for name, other in pipeline.stages.items() if name in named)
    return own.union(*outputs) if own else set()


def tasks_of(pipeline: Pipeline, stage: str) -> list[Task]:
    """The stage at every point of its axes."""
    axes = axes_of(pipeline, stage)
    points = itertools.product(*(pipeline.axes[axis] for axis in axes))
    return [Task(stage, index, tuple(zip(axes, values))) for index, values in enumerate(points)]


def dependencies_of(pipeline: Pipeline, task: Task) -> list[Task]:
    """The tasks whose outputs a task reads."""
    named = _names_in(_text_of(pipeline.stages[task.stage]))
    names = named.union(*(_names_in(words) for axis, words in _options_of(pipeline, task) if f"{axis}{_OPTIONS}" in named))
    return [need for name in pipeline.stages if name in names for need in _matching(pipeline, name, task)]


def output_of(pipeline: Pipeline, task: Task) -> Path | None:
    """Where a task writes."""
    template = pipeline.stages[task.stage].output
    return pipeline.root / next(_filled(pipeline, template, task)) if template else None


def command_of(pipeline: Pipeline, task: Task) -> list[str]:
    """The words of what a task runs, `python` first."""
    stage, output = pipeline.stages[task.stage], output_of(pipeline, task)
    if stage.train is not None:
        words = ["recipes.train", "--recipe", recipe_argument(stage.train.recipe), *_words(pipeline, stage.train.overrides, task)]
    else:
        words = _words(pipeline, stage.command or "", task)
    return ["python", "-m", *words, *(["--output", str(output)] if output else [])]


def training_overrides(pipeline: Pipeline, task: Task) -> list[str]:
    """The overrides of a training's recipe."""
    training = pipeline.stages[task.stage].train
    return _words(pipeline, training.overrides, task) if training else []


def recipe_of(pipeline: Pipeline, task: Task) -> Recipe:
    """The recipe of a task that trains.

    Raises:
        ValueError: if it cannot be composed.
    """
    training = pipeline.stages[task.stage].train
    assert training is not None, f"{task.name} trains nothing"
    return compose_recipe(recipe_argument(training.recipe), training_overrides(pipeline, task))


def recipe_argument(recipe: str) -> str:
    """A recipe as commands take it: a bundled name, or a file with its whole path."""
    return str((ROOT / recipe).absolute()) if recipe.endswith((".yaml", ".yml")) else recipe


def _words(pipeline: Pipeline, text: str, task: Task) -> list[str]:
    options = {f"{{{axis}{_OPTIONS}}}": shlex.split(words) for axis, words in _options_of(pipeline, task)}
    words = [word for written in shlex.split(text) for word in options.get(written, [written])]
    return [filled for word in words for filled in _filled(pipeline, word, task)]


def _options_of(pipeline: Pipeline, task: Task) -> list[tuple[str, str]]:
    return [(axis, pipeline.options.get(axis, {}).get(value, "")) for axis, value in task.point]


def _text_of(stage: Stage) -> str:
    return stage.command or (stage.train.overrides if stage.train else "")


def _filled(pipeline: Pipeline, word: str, task: Task) -> Iterator[str]:
    """The word with its references replaced; several where it names a stage with more points than the task has."""
    choices: dict[str, list[str]] = {}
    point = dict(task.point)
    for name in _names_in(word):
        if name == "work_dir":
            choices[name] = [str(pipeline.root)]
        elif name in point:
            choices[name] = [point[name]]
        else:
            choices[name] = [str(output_of(pipeline, need)) for need in _matching(pipeline, name, task)]
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values))
        yield _REFERENCE.sub(lambda found, chosen=chosen: chosen[found["name"]].zfill(int(found["width"] or 0)), word)  # type: ignore[misc]


def _matching(pipeline: Pipeline, stage: str, task: Task) -> list[Task]:
    """The tasks of a stage that agree with the point of a task on the axes that both have."""
    point = dict(task.point)
    return [other for other in tasks_of(pipeline, stage) if all(point.get(axis, value) == value for axis, value in other.point)]


def _names_in(text: str) -> set[str]:
    return {found["name"] for found in _REFERENCE.finditer(text)}


def _stage_problems(pipeline: Pipeline, name: str) -> Iterator[str]:
    options = {f"{axis}{_OPTIONS}": axis for axis in pipeline.options}
    stage, known = pipeline.stages[name], [*pipeline.stages, *pipeline.axes, *options, "work_dir"]
    if (stage.command is None) == (stage.train is None):
        yield f"stage {name} has {'neither command nor' if stage.command is None else 'both command and'} train; expected one of them"
        return
    if stage.train is not None and stage.output is None:
        yield f"stage {name} trains but has no output; give the directory of the run"
    if not stage.keep and stage.output is None:
        yield f"stage {name} has keep: false but no output that could be removed; leave it out"
    if stage.resources not in pipeline.resources:
        yield f"stage {name} requests the resources {stage.resources}; known are {', '.join(pipeline.resources)}"
    elif (nodes := pipeline.resources[stage.resources].nodes) < 1:
        yield f"the resources {stage.resources} have {nodes} nodes; expected at least 1"
    elif nodes > 1 and stage.command is not None and "--ray" not in stage.command.split():
        yield f"stage {name} requests {nodes} nodes, but uses only one; add --ray to its command, or request one node"
    named = {options.get(reference, reference) for reference in _names_in(_text_of(stage))}
    for reference in _names_in(_text_of(stage)) & set(options):
        named = named.union(*map(_names_in, pipeline.options[options[reference]].values()))
    for unknown in sorted((named | _names_in(stage.output or "")) - set(known)):
        yield f"stage {name} names {{{unknown}}}; there are {', '.join(known)}"
    for axis in sorted(named & set(pipeline.axes) - _names_in(stage.output)) if stage.output is not None else ():
        yield f"stage {name} is repeated over {axis}, but all its runs would write to the same place; put {{{axis}}} into its output"
    if other := sorted(_names_in(stage.output or "") & set(pipeline.stages)):
        yield f"the output of stage {name} names stage {other[0]}; expected a path below work_dir"
    if stage.command is not None:
        yield from _command_problems(name, stage.command)


def _command_problems(name: str, command: str) -> Iterator[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        yield f"the command of stage {name} cannot be split into words: {error}"
        return
    if not words or "." not in words[0] or not _is_module(words[0]):
        yield f"the command of stage {name} does not begin with a module of this project, for example data_prep.train_tokenizer"
    if "--output" in words:
        yield f"the command of stage {name} has --output; give it as `output`"


def _is_module(name: str) -> bool:
    return ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()


def _place_problems(pipeline: Pipeline) -> Iterator[str]:
    """Outputs that are not below work_dir, that two tasks share, or that lie within another's, which is complete as a whole."""
    tasks = [task for stage in pipeline.stages for task in tasks_of(pipeline, stage)]
    places: dict[Path, Task] = {}
    for task in tasks:
        if (output := output_of(pipeline, task)) is None:
            continue
        place = Path(os.path.normpath(output))
        if pipeline.root not in place.parents:
            yield f"the output of {task.name} is {place}; expected a path below work_dir, {pipeline.root}"
        elif place in places:
            yield f"{places[place].name} and {task.name} have the same output, {place}; give each its own"
        else:
            places[place] = task
    for place, task in places.items():
        outer = next((places[parent] for parent in place.parents if parent in places), None)
        if outer is not None:
            yield f"the output of {task.name}, {place}, lies within that of {outer.name}; move it outside"


def _cycles(pipeline: Pipeline) -> list[str]:
    """Stages that need themselves by way of others."""
    dependencies = {
        name: {need.stage for task in tasks_of(pipeline, name)[:1] for need in dependencies_of(pipeline, task)} for name in pipeline.stages
    }
    done: set[str] = set()
    while ready := [name for name in dependencies if name not in done and dependencies[name] <= done]:
        done.update(ready)
    left = [name for name in dependencies if name not in done]
    return [f"the stages {', '.join(left)} depend on each other in a cycle"] if left else []
