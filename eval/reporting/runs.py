"""Results below folders, checked to be comparable and ordered into runs."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from eval.running.results import PSEUDO, PSEUDO_TEXTS, find_results, load_result, read_lines
from eval.scoring.learned_scores import METRICS, LearnedMetric
from recipes.runs.identity import RUN
from recipes.runs.run_metrics import RunCost

# Settings that change figures of texts; tasks have their prompts' digest.
_TEXT_SETTINGS = ("start_token", "context_length", "dtype")
_ROUNDING = 1e-6
# What a transfer says of itself, by which a training run is known to start from it.
TRANSFER_FACTS = ("method", "head", "seed", "vocabulary", "matching", "num_rows_by_origin", "learning", "factorised_size")


@dataclass(frozen=True)
class Evaluated:
    """One evaluated checkpoint."""

    content: Mapping[str, Any]
    path: Path
    label: str = ""  # in place of its own name, where another model has that too

    @property
    def name(self) -> str:
        """How tables call it."""
        return self.label or str(self.content["name"])

    @property
    def step(self) -> int | None:
        """Training step; None for a model that was not trained here."""
        step = self.content["facts"].get("step")
        return int(step) if step is not None else 0 if self.content["model"]["written_by"] == "conversion.transfer" else None

    @property
    def texts(self) -> Mapping[str, Any]:
        """Figures of each held-out text."""
        texts: Mapping[str, Any] = self.content["texts"]
        return texts

    @property
    def pseudo_texts(self) -> Mapping[str, Any]:
        """Figures of each held-out text that a masked model filled in."""
        texts: Mapping[str, Any] = self.content.get(PSEUDO_TEXTS, {})
        return texts

    @property
    def tasks(self) -> Mapping[str, Any]:
        """Summary of each task."""
        tasks: Mapping[str, Any] = self.content["tasks"]
        return tasks

    def items(self, task: str) -> dict[str, Any]:
        """Ids, prompts and scores of a task's items.

        Raises:
            ValueError: if they disagree with the summary.
        """
        path, summary = self.path.parent / "items" / f"{task}.jsonl", self.tasks[task]
        lines = read_lines(path)
        found = dict(lines[0]) if len(lines) == 1 else {"ids": []}
        number = len(found["ids"])
        lengths = {number, *(len(scores) for scores in found.get("scores", {}).values())}
        if len(lengths) > 1 or number < summary["num_items"] or number % max(1, summary["num_items"]):  # a line for each filter of lm-eval
            raise ValueError(
                f"{path} has {' / '.join(map(str, sorted(lengths)))} items, but {self.path} records {summary['num_items']}: it was truncated"
                " or changed; evaluate the model again"
            )
        right = found["scores"].get("acc")
        recorded = (summary["metrics"].get("acc") or {}).get("value")
        if (
            right
            and number == summary["num_items"]
            and recorded is not None
            and set(right) <= {0, 1}
            and abs(fmean(right) - recorded) > _ROUNDING
        ):
            raise ValueError(
                f"the items of {path} have an accuracy of {fmean(right):.4f}, but {self.path} records {recorded:.4f}: one of them was changed;"
                " evaluate the model again"
            )
        return found

    def samples(self, task: str) -> list[dict[str, Any]]:
        """Questions and answers of a task's items.

        Raises:
            ValueError: if there are others than the summary speaks of.
        """
        path = self.path.parent / "samples" / f"{task}.jsonl"
        found = read_lines(path)
        if (number := len({sample["doc_id"] for sample in found})) != self.tasks[task]["num_items"]:
            raise ValueError(
                f"{path} has {number} items, but {self.path} records {self.tasks[task]['num_items']}: it was truncated; evaluate the model again"
            )
        return found

    def documents(self, text: str, *, pseudo: bool = False) -> list[dict[str, Any]]:
        """Negative log-likelihood and bytes of a text's documents, as predicted or as filled in.

        Raises:
            ValueError: if there are others than the summary speaks of.
        """
        path, figures = (
            self.path.parent / "documents" / f"{PSEUDO if pseudo else ''}{text}.jsonl",
            (self.pseudo_texts if pseudo else self.texts)[text],
        )
        found = read_lines(path)
        sums = len(found), sum(document["text_bytes"] for document in found)
        if sums != (recorded := (figures["num_documents"], figures["text_bytes"])):
            raise ValueError(
                f"{path} has {sums[0]} documents of {sums[1]} bytes, but {self.path} records {recorded[0]} of {recorded[1]}: it was truncated or changed;"
                " evaluate the model again"
            )
        return found


@dataclass(frozen=True)
class Run:
    """Checkpoints of one training, by step; a model that was not trained here is a run of one."""

    name: str
    checkpoints: tuple[Evaluated, ...]

    @property
    def last(self) -> Evaluated:
        """The checkpoint that tables show."""
        return self.checkpoints[-1]


@dataclass(frozen=True)
class Report:
    """All that a report needs, in order.

    Attributes:
        generation: digest of a model -> its figures of eval.generate.
        costs: name of a run -> what it took to its best checkpoint.
    """

    runs: tuple[Run, ...]
    generation: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    costs: Mapping[str, RunCost] = field(default_factory=dict)

    @property
    def models(self) -> list[Evaluated]:
        """The last checkpoint of every run."""
        return [run.last for run in self.runs]

    @cached_property
    def texts(self) -> list[str]:
        """Names of texts, in the order they were evaluated in."""
        return list(dict.fromkeys(name for run in self.runs for model in run.checkpoints for name in model.texts))

    @cached_property
    def pseudo_texts(self) -> list[str]:
        """Names of texts that masked models filled in."""
        return list(dict.fromkeys(name for run in self.runs for model in run.checkpoints for name in model.pseudo_texts))

    @cached_property
    def tasks(self) -> list[str]:
        """Names of tasks, in the order they were evaluated in."""
        return list(dict.fromkeys(name for run in self.runs for model in run.checkpoints for name in model.tasks))


def read_report(folders: Sequence[Path], *, baseline: str | None = None) -> Report:
    """Runs from the results below folders, the baseline first.

    Args:
        baseline: name of a run or of its last checkpoint; by default the first model that was not trained here, else the first run (`require_clear_baseline`).

    Raises:
        ValueError: if there are no results, two are of the same run and step, two were asked different prompts or scored on different
            texts or by different COMET or BLEURT checkpoints, or there is no such baseline.
    """
    models = _read(folders)
    _require_same_texts(models)
    _require_same_prompts(models)
    for metric in METRICS:
        _require_same_scorer(models, metric)
    runs = _runs(models)
    first = _baseline(runs, baseline)
    return Report((first, *(run for run in runs if run is not first)))


def _read(folders: Sequence[Path]) -> list[Evaluated]:
    paths = find_results(folders)
    models = [Evaluated(load_result(path), path) for path in dict.fromkeys(path.resolve() for path in paths)]
    if not any(model.texts or model.pseudo_texts or model.tasks for model in models):
        raise ValueError(f"{paths[0]} has neither texts nor tasks, so there is nothing to report; evaluate with --text or --tasks")
    return _with_distinct_labels(models)


def _with_distinct_labels(models: Sequence[Evaluated]) -> list[Evaluated]:
    """The models, those of one name with the output of their training before it, or else with their folder."""
    found = []
    places = [model.path.parent for model in models]
    common = os.path.commonpath(places) if places else ""
    for model in models:
        alike = [other for other in models if other.name == model.name]
        outputs = [(training_of(other) or {}).get("output") for other in alike]
        mine = (training_of(model) or {}).get("output")
        label = f"{mine}/{model.name}" if mine is not None and outputs.count(mine) == 1 else os.path.relpath(model.path.parent, common)
        found.append(replace(model, label=label) if len(alike) > 1 else model)
    return found


def _require_same_texts(models: Sequence[Evaluated]) -> None:
    for of in (lambda model: model.texts, lambda model: model.pseudo_texts):
        for text in dict.fromkeys(name for model in models for name in of(model)):
            first, *others = (model for model in models if text in of(model))
            for other in others:
                if of(other)[text]["digest"] != of(first)[text]["digest"]:
                    raise ValueError(
                        f"{other.path} and {first.path} were made from different files for {text}; evaluate all models on the same texts"
                    )
                for setting in _TEXT_SETTINGS:
                    found, requested = other.content["settings"][setting], first.content["settings"][setting]
                    if found != requested:
                        raise ValueError(
                            f"{other.path} was made with {setting} {found}, but {first.path} with {requested}; evaluate all models with the same settings"
                        )


def _require_same_prompts(models: Sequence[Evaluated]) -> None:
    for task in dict.fromkeys(name for model in models for name in model.tasks):
        first, *others = (model for model in models if task in model.tasks)
        for other in others:
            if other.tasks[task]["prompts_digest"] != first.tasks[task]["prompts_digest"]:
                raise ValueError(
                    f"{other.path} and {first.path} asked {task} differently: {_first_difference(first, other, task)};"
                    " evaluate all models with the same settings"
                )


def _require_same_scorer(models: Sequence[Evaluated], metric: LearnedMetric) -> None:
    scored = [(model, task, facts) for model in models for task in model.tasks if (facts := model.tasks[task].get(metric.name))]
    for model, task, facts in scored:
        first_model, first_task, first = scored[0]
        if facts["digest"] != first["digest"]:
            raise ValueError(
                f"{task} of {model.path} was scored by the {metric.title} checkpoint {facts['name']} ({facts['digest']}), but {first_task} of"
                f" {first_model.path} by {first['name']} ({first['digest']}); score all with one, by `python -m eval.{metric.name}`"
            )


def _first_difference(first: Evaluated, other: Evaluated, task: str) -> str:
    for setting in ("chat_template", "system_prompt", "fewshot_as_multiturn"):
        values = [model.content["settings"].get(setting) or None for model in (other, first)]
        if values[0] != values[1]:
            return f"with {setting} {values[0]} and {values[1]}"
    protocols = [model.tasks[task].get("protocol") or {} for model in (other, first)]
    for setting in dict.fromkeys(name for protocol in protocols for name in protocol):
        values = [protocol.get(setting) for protocol in protocols]
        if values[0] != values[1]:
            return f"with {setting} {values[0]} and {values[1]}"
    shots = [model.tasks[task]["num_fewshot"] for model in (other, first)]
    if shots[0] != shots[1]:
        return f"with {shots[0]} and {shots[1]} examples"
    theirs, ours = other.items(task), first.items(task)
    if len(theirs["ids"]) != len(ours["ids"]):
        return f"{len(theirs['ids'])} and {len(ours['ids'])} items"
    for number, (their_id, our_id, their_prompt, our_prompt) in enumerate(
        zip(theirs["ids"], ours["ids"], theirs["prompts"], ours["prompts"]), start=1
    ):
        if their_id != our_id:
            return f"item {number} is {their_id} in one and {our_id} in the other"
        if their_prompt != our_prompt:
            return f"the prompts differ, first at item {our_id}"
    return "the reference answers or the generation settings differ"


def _runs(models: Sequence[Evaluated]) -> list[Run]:
    groups = by_training(models)
    names = [_run_name(group) for group in groups]
    return [Run(_name_apart(number, names, groups), tuple(group)) for number, group in enumerate(groups)]


def _name_apart(number: int, names: Sequence[str], groups: Sequence[Sequence[Evaluated]]) -> str:
    """The name of a run, where another has it too with the output of its training, or with its id."""
    recorded = [training_of(group[-1]) or {} for name, group in zip(names, groups, strict=True) if name == names[number]]
    mine = training_of(groups[number][-1])
    if len(recorded) == 1 or mine is None:
        return names[number]
    alike = [run.get("output") for run in recorded].count(mine["output"]) > 1
    return f"{names[number]}, {mine['id'] if alike else mine['output']}"


def by_training(models: Sequence[Evaluated]) -> list[list[Evaluated]]:
    """The models of each training by step; what a transfer made, step 0, is the beginning of every training run that starts from it.

    Raises:
        ValueError: if two are of one step of a training.
    """
    groups: dict[str, list[Evaluated]] = {}
    for model in models:
        groups.setdefault(_identity(model), []).append(model)
    for start in [model for model in models if model.step == 0 and not training_of(model)]:
        trained = [group for group in groups.values() if training_of(group[0]) and _transfer(group[0]) == _transfer(start)]
        for group in trained:
            group.append(start)
        alone = groups[_identity(start)]
        if trained and all(model.step == 0 for model in alone):  # else also the beginning of those that name no training
            alone.remove(start)
            if not alone:
                del groups[_identity(start)]
    found = [sorted(group, key=lambda model: -1 if model.step is None else model.step) for group in groups.values()]
    for group in found:
        for earlier, later in itertools.pairwise(group):
            if earlier.step == later.step:
                raise ValueError(f"{earlier.path} and {later.path} are both step {later.step} of the same run; leave one of them out")
    return found


def training_of(model: Evaluated) -> Mapping[str, Any] | None:
    """Id, output, seed, and name and digest of the recipe of the training that a model is of; None where its folder does not say."""
    recorded = model.content["facts"].get(RUN)
    return recorded if isinstance(recorded, Mapping) else None


def _identity(model: Evaluated) -> str:
    """What is the same for all checkpoints of a training; of those that do not say which it was, what their transfer was."""
    if (run := training_of(model)) is not None:
        return str(run["id"])
    if model.step is None:
        return str(model.path)
    recorded = _transfer(model)
    return recorded if any(value is not None for value in json.loads(recorded).values()) else str(model.path.parent.parent)


def _transfer(model: Evaluated) -> str:
    facts = model.content["facts"]
    return json.dumps({key: facts.get(key) for key in TRANSFER_FACTS}, sort_keys=True, default=str)


def _run_name(models: Sequence[Evaluated]) -> str:
    if len(models) == 1:
        return models[0].name
    facts, run = models[-1].content["facts"], training_of(models[-1])
    parts = [str(facts[key]) for key in ("method", "head") if facts.get(key) is not None] or ([str(run["name"])] if run else [])
    seed = f"seed {facts['seed']}" if facts.get("seed") is not None else ""
    return ", ".join(filter(None, [*parts, seed])) or models[0].path.parent.parent.name


def require_steps(report: Report, steps: Sequence[int]) -> None:
    """Refuse training steps that nobody evaluated.

    Raises:
        ValueError: if there is one.
    """
    known = sorted({model.step for run in report.runs for model in run.checkpoints if model.step is not None})
    if missing := [step for step in steps if step not in known]:
        raise ValueError(f"no run was evaluated at step {missing[0]}; the results have {', '.join(map(str, known)) or 'none'}")


def require_clear_baseline(report: Report) -> None:
    """Refuse a report whose baseline would be the first folder by name.

    Raises:
        ValueError: if there are several runs, and none or more than one was not trained here.
    """
    untrained = [run.name for run in report.runs if run.last.step is None]
    if len(report.runs) > 1 and len(untrained) != 1:
        raise ValueError(
            f"the default baseline is the one model that was not trained here, but there are {len(untrained)}; name it by --baseline:"
            f" {'; '.join(untrained or [run.name for run in report.runs])}"
        )


def _baseline(runs: Sequence[Run], requested: str | None) -> Run:
    if requested is None:
        return next((run for run in runs if run.last.step is None), runs[0])
    for run in runs:
        if requested in (run.name, run.last.name):
            return run
    raise ValueError(f"there is no run called {requested}; there are {'; '.join(run.name for run in runs)}")
