"""The page of a project, while it runs and afterwards: text, vocabulary, training, evaluation, cost, and next steps.

Each section is made of the outputs that are there, by their manifests, whichever stages a pipeline has; what is not there yet is left out.
"""

from __future__ import annotations

import os
import shlex
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.pages import rendered
from common.plain_files import read_json
from common.progress import duration
from eval.reporting.charts import NUM_COLOURS, Point, Series, curve_panel
from eval.reporting.continuations import PROMPTS_NAME, read_continuations
from eval.reporting.exports import scores_rows
from eval.reporting.runs import Report, Run, read_report
from eval.reporting.scores import LANGUAGES, Line, lines
from eval.reporting.warnings import warnings
from eval.running.results import RESULT_NAME
from recipes.pipelines.file import Pipeline, Task, command_of, output_of, recipe_of, tasks_of
from recipes.pipelines.live_page import PAGE_NAME
from recipes.pipelines.running import ENDED_EARLY
from recipes.pipelines.state import Record, manifest_of, read_record
from recipes.planner import costs
from recipes.planner.hardware import find_gpu
from recipes.runs.run_dir import METRICS_NAME
from recipes.runs.run_metrics import cost_until, read_metrics

_REFRESH_SECONDS = 20  # by the browser, while there is something to come
_MOST_PROMPTS = 6
_KEPT = "copy"  # method of a transfer that leaves the source's vocabulary as it is
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        tables: label and table each.
        links: words and address each.
    """

    title: str
    about: Sequence[str] = ()
    tables: Sequence[tuple[str, Table]] = ()
    panels: Sequence[Mapping[str, Any]] = ()
    key: Sequence[str] = ()
    prompts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    commands: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Made:
    """A task that has made its output, also where that was removed to save space.

    Attributes:
        module: of its command.
        facts: of its output's manifest; none where it is a folder of outputs.
    """

    task: Task
    output: Path
    module: str
    facts: Mapping[str, Any]


def write_project_page(pipeline: Pipeline, states: Mapping[Task, str]) -> Path:
    """Write `index.html` into the directory of a pipeline, in place of the one before.

    Args:
        states: of tasks, where more is known of them than by what is on disk: "running", "waiting".
    """
    path, content = pipeline.root / PAGE_NAME, project_page(pipeline, states)
    aside = path.with_name(f".{PAGE_NAME}.{uuid.uuid4().hex}")  # jobs that end at the same time write it too
    aside.write_text(content, encoding="utf-8")
    aside.replace(path)
    return path


def project_page(pipeline: Pipeline, states: Mapping[Task, str]) -> str:
    """The page as HTML."""
    made, trainings = _made(pipeline), _trainings(pipeline)
    report = _report(made)
    sections = [
        _text(made, pipeline),
        _vocabulary(report),
        _methods(made, pipeline),
        _curves(trainings),
        _bits(report, made, pipeline),
        _tasks(report),
        _continuations(made),
        _costs(pipeline, trainings),
        _onward(made, pipeline),
    ]
    records = {task: read_record(pipeline, task) for name in pipeline.stages for task in tasks_of(pipeline, name)}
    done = all(record is not None and record.is_done for record in records.values())
    return rendered(
        "project.html",
        title=pipeline.name,
        refresh=None if done else _REFRESH_SECONDS,
        summary=_summary(records, states),
        sections=[section for section in sections if section is not None],
        stages=(["stage", "state", "time"], [_stage_row(task, record, states) for task, record in records.items()]),
        stages_open=not done,
    )


def _made(pipeline: Pipeline) -> list[Made]:
    found = []
    for name, stage in pipeline.stages.items():
        for task in tasks_of(pipeline, name) if stage.train is None else ():
            output, manifest = output_of(pipeline, task), manifest_of(pipeline, task)
            if output is not None and (manifest is not None or output.is_dir()):
                found.append(Made(task, output, command_of(pipeline, task)[2], manifest.facts if manifest is not None else {}))
    return found


def _trainings(pipeline: Pipeline) -> dict[str, tuple[Task, Path]]:
    """Name -> task and folder, of those that have logged something."""
    tasks = [task for name, stage in pipeline.stages.items() if stage.train is not None for task in tasks_of(pipeline, name)]
    folders = {task: output for task in tasks if (output := output_of(pipeline, task)) is not None and (output / METRICS_NAME).is_file()}
    return {_point(task): (task, folder) for task, folder in folders.items()}


def _point(task: Task) -> str:
    """A task by the values that tell it from others of its stage, or by its stage."""
    return ", ".join(value for _, value in task.point) or task.stage


def _report(made: Sequence[Made]) -> Report | None:
    folders = [one.output for one in made if one.module == "eval.harness" and any(one.output.rglob(RESULT_NAME))]
    return read_report(folders) if folders else None


def _summary(records: Mapping[Task, Record | None], states: Mapping[Task, str]) -> str:
    counts = Counter(_state(task, record, states) for task, record in records.items())
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _state(task: Task, record: Record | None, states: Mapping[Task, str]) -> str:
    if record is not None and record.is_done:
        return "done"
    if task in states or record is None:
        return states.get(task, "not started")
    return "begun" if record.message == ENDED_EARLY else "failed"


def _stage_row(task: Task, record: Record | None, states: Mapping[Task, str]) -> list[str]:
    state = _state(task, record, states)
    description = (
        f"{state} {record.message.removeprefix('failed ')}, see {record.log}" if state == "failed" and record is not None else state
    )
    return [task.name, description, "" if record is None or record.seconds is None else duration(record.seconds)]


def _text(made: Sequence[Made], pipeline: Pipeline) -> Section | None:
    rows = [[_name(one), corpus, *row] for one in made for corpus, row in _amounts(one)]
    if not rows:
        return None
    header = ["stage", "corpus", "documents read", "kept", "removed most often for; notes"]
    of_text = [one for one in made if one.module.startswith("data_prep.")]
    links = _links(of_text, pipeline, ("report.md", "report.html"))
    return Section("Text", tables=[("what happened to the text", (header, rows))], links=links)


def _amounts(one: Made) -> list[tuple[str, list[str]]]:
    """Corpus, and what stands of it in the table, of the stages that read documents."""
    facts, rows = one.facts, []
    if not facts:
        return []
    if one.module in ("data_prep.collect", "data_prep.clean"):
        for corpus, count in facts["counts"].items():
            removed = {reason: change["documents"] for reason, change in count.get("removed", {}).items()}
            rows.append((corpus, [f"{count['num_read']:,}", f"{count['num_kept']:,}", _most(removed)]))
    elif one.module == "data_prep.dedup":
        for corpus, count in facts["counts"].items():
            documents = count["documents"]
            shortened = documents.get("shortened", 0)
            read, gone = sum(documents.values()), documents.get("removed", 0) + documents.get("empty", 0)
            rows.append((corpus, [f"{read:,}", f"{read - gone:,}", f"{shortened:,} of these were shortened" if shortened else ""]))
    elif one.module == "data_prep.mixture":
        for count in facts["corpora"]:
            train, held_out, left_out = (count[side]["documents"] for side in ("train", "validation", "left_out"))
            rows.append((count["name"], [f"{train + held_out + left_out:,}", f"{train:,}", f"{held_out:,} held out"]))
    elif one.module == "data_prep.to_megatron":
        rows.append(("", [f"{facts['num_documents']:,}", f"{facts['num_documents']:,}", f"{facts['num_tokens']:,} tokens"]))
    return rows


def _most(removed: Mapping[str, int], most: int = 3) -> str:
    ordered = sorted(removed.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{reason} ({number:,})" for reason, number in ordered if number)


def _name(one: Made) -> str:
    return one.task.stage + "".join(f", {value}" for _, value in one.task.point)


def _vocabulary(report: Report | None) -> Section | None:
    """Of the models that are compared, what their tokenizers make of the held-out texts; models of one tokenizer are one row."""
    if report is None or not report.texts:
        return None
    rows: dict[tuple[str, ...], list[str]] = {}
    for model in report.models:
        cells = []
        for text in report.texts:
            figures = model.texts.get(text)
            tokens = max(figures["num_tokens"], 1) if figures else 1
            cells += [f"{tokens / figures['num_words']:.2f}", f"{figures['text_bytes'] / tokens:.2f}"] if figures else ["–", "–"]
        rows.setdefault(tuple(cells), []).append(model.name)
    header = ["models", *(f"{_language(text)}, {what}" for text in report.texts for what in ("tokens per word", "bytes per token"))]
    about = ["Fewer tokens per word mean shorter samples and faster, cheaper training and generation for the same text."]
    return Section("Vocabulary", about, [("tokens per word", (header, [[", ".join(names), *cells] for cells, names in rows.items()]))])


def _language(text: str) -> str:
    return LANGUAGES.get(text, text)


def _methods(made: Sequence[Made], pipeline: Pipeline) -> Section | None:
    compared = [one for one in made if one.module == "conversion.transfer_compare"]
    if not compared:
        return None
    about = [read_json(one.output / "comparison.json")["recommendation"]["sentence"] for one in compared]
    return Section("Embedding initialisation", about, links=_links(compared, pipeline, ("comparison.html",)))


def _links(made: Sequence[Made], pipeline: Pipeline, names: Sequence[str]) -> list[tuple[str, str]]:
    paths = [(one, one.output / name) for one in made for name in names]
    return [(f"{_name(one)}: {path.name}", os.path.relpath(path, pipeline.root)) for one, path in paths if path.is_file()]


def _curves(trainings: Mapping[str, tuple[Task, Path]]) -> Section | None:
    values: dict[str, dict[str, list[Point]]] = {}
    for name, (_, folder) in trainings.items():
        for record in read_metrics(folder):
            for key, value in record.items():
                if (key == "loss" or (key.startswith("validation_") and "bits_per_byte" in key)) and value is not None:
                    values.setdefault(key, {}).setdefault(name, []).append(Point(record["step"], value))
    if not values:
        return None
    names = list(trainings)
    panels = [
        curve_panel(
            "training loss" if key == "loss" else key.replace("_", " "),
            [Series(name, names.index(name) % NUM_COLOURS, tuple(points)) for name, points in by_run.items()],
            x_label="training step",
        )
        for key, by_run in values.items()
    ]
    about = ["Losses of runs with different vocabularies are not comparable; bits per byte are."] if len(names) > 1 else []
    return Section("Training", about, panels=panels, key=names)


def _bits(report: Report | None, made: Sequence[Made], pipeline: Pipeline) -> Section | None:
    if report is None or not report.texts:
        return None
    header = ["model", "steps"]
    for text in report.texts:
        header += [f"{_language(text)}, before training", f"{_language(text)}, now [95 %]"]
    rows = sorted(((_order(run, report.texts[0]), _bits_row(run, report.texts)) for run in report.runs), key=lambda item: item[0])
    links = _links(made, pipeline, ("report.html", "learning_curves.html"))
    about = ["Bits per byte of held-out text: lower is better, comparable between vocabularies.", *warnings(report)]
    return Section("Bits per byte", about, [("bits per byte", (header, [row for _, row in rows]))], links=links)


def _order(run: Run, text: str) -> float:
    score = Line(text, "bits_per_byte", True, True).score(run.last)
    return float("inf") if score is None else score.value


def _bits_row(run: Run, texts: Sequence[str]) -> list[str]:
    start = run.checkpoints[0] if run.checkpoints[0].step == 0 and len(run.checkpoints) > 1 else None
    name, description = run.last.name, " (LAPT)" if run.last.content["facts"].get("method") == _KEPT else ""
    row = [f"{name}{description}" if run.last.step else f"{name} (not trained here)", str(run.last.step or 0)]
    for text in texts:
        line = Line(text, "bits_per_byte", True, True)
        before, now = line.score(start) if start else None, line.score(run.last)
        row += ["–" if before is None else before.value_text(), "–" if now is None else now.text()]
    return row


def _tasks(report: Report | None) -> Section | None:
    found = [] if report is None else [line for line in lines(report) if not line.is_text]
    if report is None or not found:
        return None
    return Section("Tasks", ["Scores with 95 % intervals. ↓: lower is better."], [("scores of tasks", scores_rows(report, found))])


def _continuations(made: Sequence[Made]) -> Section | None:
    folders = [one.output for one in made if one.module == "eval.generate" and (one.output / PROMPTS_NAME).is_file()]
    if not folders:
        return None
    found = read_continuations(folders[0])
    shown = {prompt: found.texts[prompt_id] for prompt_id, prompt in list(found.prompts.items())[:_MOST_PROMPTS]}
    return Section("The same prompt, continued", ["One text per model, drawn with the same seed and settings."], prompts=shown)


def _costs(pipeline: Pipeline, trainings: Mapping[str, tuple[Task, Path]]) -> Section | None:
    rows = [row for name, (task, folder) in trainings.items() if (row := _cost_row(pipeline, name, task, folder)) is not None]
    records = [read_record(pipeline, task) for name in pipeline.stages for task in tasks_of(pipeline, name)]
    seconds = [record.seconds for record in records if record is not None and record.seconds is not None]
    if not rows and not seconds:
        return None
    about = [f"All finished stages took {duration(sum(seconds))} in total."] if seconds else []
    header = ["training", "steps", "time", "device hours", "kWh"]
    tables = [("cost of trainings", (header, rows))] if rows else []
    if any(row[-1] != "–" for row in rows):
        about.append("Energy: of the GPUs at their design power, without hosts, network and cooling.")
    return Section("Cost", about, tables)


def _cost_row(pipeline: Pipeline, name: str, task: Task, folder: Path) -> list[str] | None:
    steps = [row["step"] for row in read_metrics(folder) if "seconds_per_step" in row]
    if not steps:
        return None
    cost, gpu = cost_until(folder, max(steps)), recipe_of(pipeline, task).parallel.gpu
    energy = "–" if gpu is None else f"{costs.energy_kwh(cost.device_hours, find_gpu(gpu).watts):,.2f}"
    return [name, f"{cost.step:,}", duration(3600 * cost.hours), f"{cost.device_hours:,.2f}", energy]


def _onward(made: Sequence[Made], pipeline: Pipeline) -> Section | None:
    """Of the newest export of what was grafted, the commands that take it further."""
    grafted = [one for one in made if one.module == "conversion.nemo_to_hf" and one.facts.get("method") not in (None, _KEPT)]
    if not grafted:
        return None
    newest = max(reversed(grafted), key=lambda one: int(one.facts.get("step", 0)))
    folder = shlex.quote(str(newest.output))
    commands = [
        f"python -m conversion.inspect {folder}",
        f"vllm serve {folder}",
        f"python -m conversion.to_gguf --input {folder} --output model.gguf",
        f"hf upload ORGANISATION/NAME {folder}",
    ]
    return Section("Next steps with the model", [f"For {_name(newest)}; other exports work the same way."], commands=commands)
