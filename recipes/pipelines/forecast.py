"""What each task is going to take on this machine: seconds, memory, disk; by measured rates and the planner, and unknown where there are none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.artifacts import Manifest
from common.door import ROOT
from common.plain_files import read_json
from common.tables import markdown_table
from conversion.families import FAMILIES, language_config
from recipes.numbers import arithmetic
from recipes.numbers.batches import batches_of
from recipes.pipelines.file import Pipeline, Task, command_of, needs_of, output_of, recipe_of, tasks_of
from recipes.pipelines.machine import GIB, Machine, need_of
from recipes.pipelines.state import read_record
from recipes.pipelines.work import Work
from recipes.planner import costs
from recipes.planner.estimate import estimate_run
from recipes.planner.hardware import find_gpu
from recipes.planner.host import estimate_host
from recipes.planner.layout import layout_of
from recipes.planner.memory import estimate_memory
from recipes.planner.visible import visible_gpu
from recipes.rules.checks import planned_model
from recipes.rules.inputs import RunInputs, read_inputs
from recipes.rules.schema import Recipe

_MB, _GB = 1e6, 1e9
_TEXTS = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".vert", ".gz", ".zst", ".xz")
_PACKED = {".gz": 2.6, ".zst": 2.9, ".xz": 3.4}  # text by file, of Slovene novels as .jsonl
_CPU_START_SECONDS, _CPU_FLOPS = (
    12.0,
    27e9,
)  # of a training; a core's rate in it, of 53e9 in products alone (docs/demo.md: its slow machine)


@dataclass(frozen=True)
class Rate:
    """Of a command on two cores (docs/benchmarks.md: AMD EPYC, commit 3ca73d0).

    Attributes:
        start: seconds that it takes with little to do.
        text, model: seconds per MB of text, and per GB of model, that it reads.
        memory: GiB, and so many times the model that it reads.
        packs: bytes on disk by those of text read, where it writes text; else of the model read.
    """

    start: float
    text: float = 0.0
    model: float = 0.0
    memory: tuple[float, float] = (0.3, 0.0)
    packs: tuple[float, float] = (0.0, 0.0)


RATES = {
    "data_prep.collect": Rate(0.3, 0.05, packs=(0.35, 0)),
    "data_prep.clean": Rate(0.4, 0.05, packs=(0.35, 0)),
    "data_prep.dedup": Rate(0.4, 0.05, packs=(0.35, 0)),
    "data_prep.mixture": Rate(0.4, 0.11, packs=(0.35, 0)),
    "data_prep.train_tokenizer": Rate(0.9, 0.35, packs=(0.1, 0)),
    "data_prep.to_megatron": Rate(0.7, 0.06, packs=(0.6, 0)),
    "conversion.transfer": Rate(1.2, 0.9, 2.0, memory=(0.4, 0), packs=(0, 1.0)),
    "conversion.hf_to_nemo": Rate(0.8, 0, 0.7, memory=(0.1, 0), packs=(0, 1.0)),
    "conversion.nemo_to_hf": Rate(0.4, 0, 0.7, memory=(0.1, 0), packs=(0, 1.0)),
    "conversion.verify": Rate(12.0, 0, 8.0, memory=(0.9, 2.0)),
}


@dataclass(frozen=True)
class Forecast:
    """What one task takes; None is unknown.

    Attributes:
        disk: bytes that it leaves.
        text, model: bytes of text and of a model that who reads its output reads.
    """

    seconds: float | None = None
    memory_gib: float | None = None
    disk: float | None = None
    text: float = 0.0
    model: float = 0.0
    source: Path | None = None  # the model's folder on disk, or that which it is made from


def forecasts(work: Work, machine: Machine) -> dict[Task, Forecast]:
    """Of each task that has to run."""
    found: dict[Task, Forecast] = {}

    def of(task: Task) -> Forecast:
        if task not in found:
            found[task] = _forecast(
                work.pipeline, task, [of(need) for need in needs_of(work.pipeline, task)], machine, is_new=task in work.tasks
            )
        return found[task]

    return {task: of(task) for task in work.tasks}


def forecast_problems(pipeline: Pipeline, expected: Mapping[Task, Forecast], machine: Machine) -> list[str]:
    """What cannot fit on the machine, each with what to change."""
    problems = [
        f"stage {task.name}: it takes about {forecast.memory_gib:.0f} GiB of memory, and this machine has {machine.memory_gib:.0f};"
        f" {_smaller(pipeline, task)}, or run it elsewhere with --on"
        for task, forecast in expected.items()
        if forecast.memory_gib is not None and forecast.memory_gib > machine.memory_gib
    ]
    place = next(place for place in (pipeline.root, *pipeline.root.parents) if place.exists())
    disk, free = sum(forecast.disk or 0 for forecast in expected.values()), shutil.disk_usage(place).free
    if disk > free:
        problems.append(f"the outputs take about {_size(disk)}, and {place} has {_size(free)} free; free some, or choose another work_dir")
    return problems


def render_forecast(expected: Mapping[Task, Forecast]) -> str:
    """A row for each stage, and the sum; what is unknown is not in it."""
    rows = []
    for stage in dict.fromkeys(task.stage for task in expected):
        of_stage = [forecast for task, forecast in expected.items() if task.stage == stage]
        rows.append([stage, str(len(of_stage)), *_cells(of_stage)])
    rows.append(["in all, one after the other", str(len(expected)), *_cells(list(expected.values()), total=True)])
    return markdown_table(["stage", "tasks", "time", "memory", "disk"], rows, text_columns=1)


def _cells(forecasts: Sequence[Forecast], *, total: bool = False) -> list[str]:
    memory = [forecast.memory_gib for forecast in forecasts if forecast.memory_gib is not None]
    most = [f"{max(memory):.1f} GiB"] if memory else ["unknown"]
    sums = []
    for values, shown in (([f.seconds for f in forecasts], _time), ([f.disk for f in forecasts], _size)):
        known = [value for value in values if value is not None]
        unknown = len(known) < len(values)
        sums.append("unknown" if not known else f"{'at least ' if unknown else ''}{shown(sum(known))}")
    return [sums[0], *most, sums[1]]


def _forecast(pipeline: Pipeline, task: Task, reads: Sequence[Forecast], machine: Machine, *, is_new: bool) -> Forecast:
    words, output = command_of(pipeline, task), output_of(pipeline, task)
    if not is_new and output is not None and output.exists():
        return replace(_of_path(output), text=sum(read.text for read in reads))
    text, model, source = sum(read.text for read in reads), max((read.model for read in reads), default=0.0), None
    for path in _paths(words):
        here = _of_path(path)
        text, model, source = text + here.text, max(model, here.model), source or here.source
    source = source or next((read.source for read in reads if read.source), None)
    measured = _measured(pipeline, task)
    if pipeline.stages[task.stage].train is not None:
        return replace(
            _training(recipe_of(pipeline, task), source, need_of(pipeline, task, machine).cores, machine),
            text=text,
            model=model,
            source=source,
        )
    rate = RATES.get(words[2])
    if rate is None:
        return Forecast(measured, text=text, model=model, source=source)
    seconds = rate.start + rate.text * text / _MB + rate.model * model / _GB
    disk = rate.packs[0] * text + rate.packs[1] * model
    memory = rate.memory[0] + rate.memory[1] * model / GIB
    return Forecast(measured or seconds, memory, disk if output else 0.0, text, model if rate.packs[1] else 0.0, source)


def _training(recipe: Recipe, source: Path | None, cores: int, machine: Machine) -> Forecast:
    """By the planner, with the inputs where they are there, else with the shape of the model that theirs is made from."""
    inputs = _inputs(recipe, source)
    if inputs is None or recipe.schedule.epochs is not None:
        return Forecast()
    model, layout, steps = planned_model(recipe, inputs), layout_of(recipe), arithmetic.total_steps(recipe)
    saves = min(-(-steps // recipe.run.checkpoint_every_steps), recipe.run.keep_checkpoints or steps)
    disk = float(saves * costs.checkpoint_bytes(model, layout))
    if machine.gpus:
        gpu = find_gpu(recipe.parallel.gpu) if recipe.parallel.gpu else visible_gpu()
        hours = estimate_run(model, layout, gpu, steps=steps, batches=batches_of(recipe.schedule)).hours if gpu and layout.is_half else None
        return Forecast(None if hours is None else hours * 3600, estimate_host(model, layout).needed_gib, disk)
    flops = model.flops_per_token(layout.sequence_length) * arithmetic.run_tokens(recipe)
    memory = layout.num_devices * (estimate_memory(model, layout, kernels="cpu").total / GIB + 1)
    return Forecast(_CPU_START_SECONDS + flops / (_CPU_FLOPS * cores), memory, disk)


def _inputs(recipe: Recipe, source: Path | None) -> RunInputs | None:
    try:
        return read_inputs(recipe)
    except ValueError:  # they are still to be made
        pass
    if source is None or not (source / "config.json").is_file():
        return None
    content = read_json(source / "config.json")
    if (family := FAMILIES.get(str(content.get("model_type")))) is None:
        return None
    config = language_config(content)
    tied = bool(config.get("tie_word_embeddings", False))
    model = family.megatron_config(config, tied=tied, source=str(source))
    return RunInputs(family.model_type, model, Manifest(stage="conversion.hf_to_nemo"), ())


def _of_path(path: Path) -> Forecast:
    """Text or model of a file or folder that is there."""
    if (path / "config.json").is_file() or (path / "context").is_dir():
        weights = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return Forecast(model=float(weights), source=path if (path / "config.json").is_file() else None)
    if path.suffix == ".gguf":
        return Forecast(model=float(path.stat().st_size))
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and file.suffix in _TEXTS]
    return Forecast(text=sum(file.stat().st_size * _PACKED.get(file.suffix, 1.0) for file in files if file.suffix in _TEXTS))


def _paths(words: Sequence[str]) -> Iterator[Path]:
    """What the words of a command name that is there, apart from its output."""
    for word in words[3 : words.index("--output") if "--output" in words else None]:
        path = ROOT / word.partition("=")[2] if "=" in word else ROOT / word
        if path != ROOT and path.exists():
            yield path


def _measured(pipeline: Pipeline, task: Task) -> float | None:
    """Seconds that the stage took here at this point or at others of its axes."""
    records = [read_record(pipeline, other) for other in (task, *tasks_of(pipeline, task.stage))]
    return next((record.seconds for record in records if record is not None and record.is_done and record.seconds), None)


def _smaller(pipeline: Pipeline, task: Task) -> str:
    if pipeline.stages[task.stage].train is not None:
        return "set schedule.micro_batch_size lower, or parallel.devices_per_node"
    return "give it a smaller model"


def _size(value: float) -> str:
    return f"{value / _MB:.0f} MB" if value < _GB else f"{value / _GB:.1f} GB"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
