"""What each task is going to take on this machine: seconds, memory, disk; by measured rates and the planner, and unknown where there are none."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.progress import duration
from common.tables import markdown_table
from recipes.pipelines.file import Pipeline, Task, command_of, dependencies_of, output_of, recipe_of, tasks_of
from recipes.pipelines.machine import GIB, Machine, need_of
from recipes.pipelines.planned import planned_model_of, read_paths
from recipes.pipelines.state import read_record
from recipes.pipelines.work import Work
from recipes.planner import costs
from recipes.planner.estimate import estimate_run
from recipes.planner.hardware import has_known_rates, visible_gpu
from recipes.planner.layout import layout_of
from recipes.planner.memory import estimate_host, estimate_memory
from recipes.runs.run_state import read_run_state

_MB, _GB = 1e6, 1e9
_TEXTS = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".vert", ".gz", ".zst", ".xz")
_PACKED = {".gz": 2.8, ".zst": 2.8, ".xz": 2.8}  # bytes of text by those of the file, over novels, statutes and news in five languages
# Of a training on CPUs, by the demo's (docs/results/demo.md): 4.2e12 operations on two cores in 73 to 99 s, 2.9 to 3.6 GiB a process.
_CPU_START_SECONDS, _CPU_FLOPS, _RANK_GIB = 12.0, 29e9, 1.3


@dataclass(frozen=True)
class Rate:
    """Of a command on two cores (docs/results/benchmarks.md: AMD EPYC, commit 3ca73d0; sizes of outputs: 31 MB of novels, 8,000 tokens, gzip).

    Attributes:
        start: seconds that it takes with little to do.
        text, model: seconds per MB of text, and per GB of model, that it reads.
        memory: GiB, and so many times the model that it reads.
        each: seconds per MB of text and GB of all models, where each of them reads all of it.
        packs: bytes on disk by those of text read, where it writes text; else of the model read.
    """

    start: float
    text: float = 0.0
    model: float = 0.0
    memory: tuple[float, float] = (0.3, 0.0)
    packs: tuple[float, float] = (0.0, 0.0)
    each: float = 0.0


RATES = {
    "data_prep.collect": Rate(0.3, 0.03, packs=(0.42, 0)),
    "data_prep.clean": Rate(0.3, 0.05, packs=(0.42, 0)),
    "data_prep.dedup": Rate(0.3, 0.05, packs=(0.42, 0)),
    "data_prep.mixture": Rate(0.3, 0.09, packs=(0.42, 0)),
    "data_prep.train_tokenizer": Rate(0.5, 0.25, memory=(0.4, 0)),
    "data_prep.to_megatron": Rate(0.3, 0.08, packs=(0.55, 0)),
    "conversion.transfer": Rate(1.2, 0.9, 2.0, memory=(0.5, 0), packs=(0, 1)),  # with vectors trained on the text
    "conversion.hf_to_nemo": Rate(0.3, 0, 0.5, memory=(0.1, 0), packs=(0, 1)),
    "conversion.nemo_to_hf": Rate(4.0, 0, 0.5, memory=(0.1, 0), packs=(0, 1)),
    "conversion.verify": Rate(8.0, 0, 8.0, memory=(0.9, 2)),
    "eval.harness": Rate(5.0, memory=(0.9, 2), each=2300),  # of texts alone, in float32
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


def forecasts(work: Work, machine: Machine) -> dict[Task, Forecast]:
    """Of each task that has to run."""
    found: dict[Task, Forecast] = {}
    for task in work.tasks:  # each behind those that it needs; what others of these are made from is there
        found[task] = _forecast(
            work.pipeline, task, [found[need] for need in dependencies_of(work.pipeline, task) if need in found], machine
        )
    return found


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
    for values, shown in (([f.seconds for f in forecasts], duration), ([f.disk for f in forecasts], _size)):
        known = [value for value in values if value is not None]
        unknown = len(known) < len(values)
        sums.append("unknown" if not known else f"{'at least ' if unknown else ''}{shown(sum(known))}")
    return [sums[0], *most, sums[1]]


def _forecast(pipeline: Pipeline, task: Task, reads: Sequence[Forecast], machine: Machine) -> Forecast:
    words, output = command_of(pipeline, task), output_of(pipeline, task)
    inputs = [*reads, *map(_of_path, read_paths(words))]
    text, model = sum(read.text for read in inputs), max((read.model for read in inputs), default=0.0)
    measured = _measured(pipeline, task)
    if pipeline.stages[task.stage].train is not None:
        forecast = replace(_training(pipeline, task, machine), model=model)
        return replace(forecast, seconds=measured or forecast.seconds)
    rate = RATES.get(words[2])
    is_known = rate is not None and (text or rate.model) and (model or not (rate.model or rate.each))
    if rate is None or not is_known or "--tasks" in words:  # how much it reads is as unknown as what makes it
        return Forecast(measured, model=model)
    models = sum(read.model for read in inputs)
    seconds = measured or rate.start + rate.text * text / _MB + rate.model * model / _GB + rate.each * text / _MB * models / _GB
    memory, disk = rate.memory[0] + rate.memory[1] * model / GIB, rate.packs[0] * text + rate.packs[1] * model
    return Forecast(seconds, memory, disk if output else 0.0, text if rate.packs[0] else 0.0, model if rate.packs[1] else 0.0)


def _training(pipeline: Pipeline, task: Task, machine: Machine) -> Forecast:
    """By the planner; a step on GPUs of unknown rates, and a run that goes by epochs, are unknown."""
    recipe = recipe_of(pipeline, task)
    model = planned_model_of(pipeline, task, recipe)
    if model is None or recipe.schedule.epochs is not None:
        return Forecast()
    layout, steps, run_dir = layout_of(recipe), recipe.total_steps, output_of(pipeline, task)
    first = read_run_state(run_dir).saved_step if run_dir is not None else 0
    saves = min(-(-steps // recipe.run.checkpoint_every_steps), recipe.run.keep_checkpoints or steps)
    disk = float(saves * costs.checkpoint_bytes(model, layout))
    if machine.gpus:
        gpu = visible_gpu()
        if gpu is None or not has_known_rates(gpu) or not layout.is_half:
            return Forecast(None, estimate_host(model, layout).needed_gib, disk)
        run = estimate_run(model, layout, gpu, steps=steps, first_step=first, batches=recipe.schedule.batches)
        return Forecast(run.hours * 3600, estimate_host(model, layout).needed_gib, disk)
    flops = model.flops_per_token(layout.sequence_length) * recipe.run_tokens * max(0, steps - first) / steps
    memory = layout.num_devices * (estimate_memory(model, layout, kernels="cpu").total / GIB + _RANK_GIB)
    return Forecast(_CPU_START_SECONDS + flops / (_CPU_FLOPS * need_of(pipeline, task, machine).cores), memory, disk)


def _of_path(path: Path) -> Forecast:
    """Text or model of a file or folder that is there."""
    if (path / "config.json").is_file() or (path / "context").is_dir():
        weights = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return Forecast(model=float(weights))
    if path.suffix == ".gguf":
        return Forecast(model=float(path.stat().st_size))
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and file.suffix in _TEXTS]
    return Forecast(text=sum(file.stat().st_size * _PACKED.get(file.suffix, 1.0) for file in files if file.suffix in _TEXTS))


def _measured(pipeline: Pipeline, task: Task) -> float | None:
    """Seconds that the stage took here at this point or at others of its axes."""
    records = [read_record(pipeline, other) for other in (task, *tasks_of(pipeline, task.stage))]
    return next((record.seconds for record in records if record is not None and record.is_done and record.seconds), None)


def _smaller(pipeline: Pipeline, task: Task) -> str:
    if pipeline.stages[task.stage].train is not None:
        return "lower schedule.micro_batch_size or parallel.devices_per_node"
    return "give it a smaller model"


def _size(value: float) -> str:
    return f"{value / _MB:.0f} MB" if value < _GB else f"{value / _GB:.1f} GB"
