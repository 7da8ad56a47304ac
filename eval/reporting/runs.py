"""Results below folders, checked to be comparable and ordered into runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from eval.running.results import PSEUDO, PSEUDO_TEXTS, find_results, load_result, read_lines
from eval.scoring.learned_scores import METRICS, LearnedMetric
from recipes.runs.run_metrics import RunCost

# Settings that change figures of texts; tasks have their prompts' digest.
_TEXT_SETTINGS = ("start_token", "context_length", "dtype")


@dataclass(frozen=True)
class Evaluated:
    """One evaluated checkpoint."""

    content: Mapping[str, Any]
    path: Path

    @property
    def name(self) -> str:
        """How tables call it."""
        return str(self.content["name"])

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
        """Ids, prompts and scores of a task's items."""
        (found,) = read_lines(self.path.parent / "items" / f"{task}.jsonl")
        return dict(found)

    def documents(self, text: str, *, pseudo: bool = False) -> list[dict[str, Any]]:
        """Negative log-likelihood and bytes of a text's documents, as predicted or as filled in."""
        return read_lines(self.path.parent / "documents" / f"{PSEUDO if pseudo else ''}{text}.jsonl")


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
        baseline: name of a run or of its last checkpoint; by default the first model that was not trained here, else the first run.

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
        raise ValueError(f"{paths[0]} has neither texts nor tasks; there is nothing to report")
    return models


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
                    found, expected = other.content["settings"][setting], first.content["settings"][setting]
                    if found != expected:
                        raise ValueError(
                            f"{other.path} was made with {setting} {found}, but {first.path} with {expected}; evaluate all models alike"
                        )


def _require_same_prompts(models: Sequence[Evaluated]) -> None:
    for task in dict.fromkeys(name for model in models for name in model.tasks):
        first, *others = (model for model in models if task in model.tasks)
        for other in others:
            if other.tasks[task]["prompts_digest"] != first.tasks[task]["prompts_digest"]:
                raise ValueError(
                    f"{other.path} and {first.path} asked {task} differently: {_first_difference(first, other, task)};"
                    " evaluate all models alike"
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
    return "the right answers or the settings of generation differ"


def _runs(models: Sequence[Evaluated]) -> list[Run]:
    groups: dict[str, dict[int | None, Evaluated]] = {}
    for model in models:
        steps = groups.setdefault(run_identity(model), {})
        if model.step in steps:
            raise ValueError(f"{steps[model.step].path} and {model.path} are both step {model.step} of one run; leave one of them out")
        steps[model.step] = model
    return [
        Run(_run_name(list(steps.values())), tuple(steps[step] for step in sorted(steps, key=lambda s: -1 if s is None else s)))
        for steps in groups.values()
    ]


def run_identity(model: Evaluated) -> str:
    """What is the same for all checkpoints of a training."""
    facts = model.content["facts"]
    if model.step is None:
        return str(model.path)
    told = {key: facts.get(key) for key in ("run", "method", "head", "seed", "vocabulary", "recipe")}
    return (
        json.dumps(told, sort_keys=True, default=str)
        if any(value is not None for value in told.values())
        else str(model.path.parent.parent)
    )


def _run_name(models: Sequence[Evaluated]) -> str:
    if len(models) == 1:
        return models[0].name
    facts = models[0].content["facts"]
    parts = [str(facts[key]) for key in ("run", "method", "head") if facts.get(key) is not None]
    seed = f"seed {facts['seed']}" if facts.get("seed") is not None else ""
    return ", ".join(filter(None, [*parts, seed])) or models[0].path.parent.parent.name


def _baseline(runs: Sequence[Run], wanted: str | None) -> Run:
    if wanted is None:
        return next((run for run in runs if run.last.step is None), runs[0])
    for run in runs:
        if wanted in (run.name, run.last.name):
            return run
    raise ValueError(f"there is no run called {wanted}; there are {'; '.join(run.name for run in runs)}")
