"""COMET and BLEURT of a model's saved answers: what is scored, what was scored before, and how scores are filed beside the others.

Nothing of lm-eval is imported: this runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from common import command
from common.artifacts import MANIFEST_NAME, digest_bytes, digest_file, read_manifest, staged_directory, write_manifest
from common.options import add_option
from common.tables import markdown_table
from conversion.checkpoints.hf_model import be_quiet_and_offline
from conversion.measuring.intervals import ratio_interval
from eval.running.journal import Journal
from eval.running.results import RESULT_NAME, find_results, load_result, read_lines, write_lines, write_result

_SCALE = 100  # as the papers print them: 86.57, not 0.8657


@dataclass(frozen=True)
class LearnedMetric:
    """A model that compares texts.

    Attributes:
        name: in results; `title` for people.
        answers: what it scores; a task has such answers if it has one of the scores `found_by`.
        example: tasks of that kind.
        reads_source: whether it looks at the source besides text and reference.
    """

    name: str
    title: str
    answers: str
    found_by: tuple[str, ...]
    example: str
    reads_source: bool


COMET = LearnedMetric("comet", "COMET", "translation", ("chrf_sentence",), "flores_en_it and mt_en_de", reads_source=True)
BLEURT = LearnedMetric("bleurt", "BLEURT", "translation or summary", ("chrf_sentence", "rougeL"), "sum_my and mt_en_de", reads_source=False)
METRICS = (COMET, BLEURT)


class Triple(NamedTuple):
    """What is looked at; `source` is empty where the metric does not read it."""

    source: str
    output: str
    reference: str


Scorer = Callable[[Sequence[Triple]], list[float]]


@dataclass(frozen=True)
class Item:
    """One sentence and its translations: one, or one of each sampled run."""

    identity: str
    group: str
    source: str
    reference: str
    outputs: tuple[str, ...]

    def triples(self, metric: LearnedMetric = COMET) -> list[Triple]:
        """The answers, then a translation's source as its own translation: what copying would score."""
        outputs = (*self.outputs, self.source) if self.source else self.outputs
        return [Triple(self.source if metric.reads_source else "", output, self.reference) for output in outputs]


def scorable_tasks(result: Mapping[str, Any], path: Path, requested: Sequence[str] = (), *, metric: LearnedMetric = COMET) -> list[str]:
    """Names of the tasks of a result whose answers can be scored: those wanted, else all.

    Raises:
        ValueError: if a wanted task was not evaluated or has other answers, or there is none at all.
    """
    tasks: Mapping[str, Any] = result["tasks"]
    found = [name for name, summary in tasks.items() if set(metric.found_by) & set(summary["metrics"])]
    kinds = " and ".join({"translation": "translations", "summary": "summaries"}[kind] for kind in metric.answers.split(" or "))
    for name in requested:
        if name not in tasks:
            raise ValueError(f"{path} has no answers to {name}; it has {', '.join(tasks) or 'none'}")
        if name not in found:
            raise ValueError(
                f"{name} is not a {metric.answers}, so {metric.title} cannot score it; the {kinds} in {path} are {_listed(found)}"
            )
    if not found:
        raise ValueError(f"{path} holds no {kinds}; {metric.title} scores tasks such as {metric.example}, it has {_listed(tasks)}")
    return list(requested) or found


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"


def read_items(results_dir: Path, task: str, metric: LearnedMetric = COMET) -> list[Item]:
    """The answers to a task that a model's folder of results holds.

    Raises:
        ValueError: if samples are missing, or one lacks source, reference or answer.
    """
    path = results_dir / "samples" / f"{task}.jsonl"
    samples = read_lines(path)
    if not samples:
        raise ValueError(f"{path} is empty; evaluate the model again")
    return [_item(sample, path, metric) for sample in samples]


def _item(sample: Mapping[str, Any], path: Path, metric: LearnedMetric) -> Item:
    document = sample["doc"]
    identity = str(document.get("id", sample["doc_id"]))
    references = document.get("references")
    needs = f"{metric.title} needs {'source, translation' if metric.reads_source else 'answer'} and reference"
    if metric.reads_source and not document.get("source"):
        raise ValueError(f"item {identity} of {path} has no source; {needs}")
    if not references or not references[0]:
        raise ValueError(f"item {identity} of {path} has no reference; {needs}")
    # What the task itself scored: one text, or one list with a text of each run.
    answers = sample["filtered_resps"]
    outputs = answers if isinstance(answers[0], str) else answers[0]
    texts = tuple(str(text).strip() for text in outputs)
    return Item(identity, str(document.get("group", identity)), str(document.get("source", "")), str(references[0]), texts)


class RememberedScores:
    """Scores of triples, asked for in pieces and written as they come; no triple is ever scored twice, of whichever model it is."""

    def __init__(self, score: Scorer, *, triples_per_piece: int = 512, metric: LearnedMetric = COMET) -> None:
        self._score, self._metric = score, metric
        self._triples_per_piece = triples_per_piece
        self._known: dict[str, float] = {}

    def of(self, items: Sequence[Item], journal: Journal) -> list[list[float]]:
        """For every item the scores of its answers, and of a translation last the one of a copy, on the metric's own scale.

        Args:
            journal: scores of an interrupted run, which resumes from there.

        Raises:
            ValueError: if a score is not finite.
        """
        missing: dict[str, Triple] = {}
        for triple in (triple for item in items for triple in item.triples(self._metric)):
            key = _key(triple)
            if key in journal:
                self._known[key] = journal[key]["answer"]
            elif key not in self._known:
                missing[key] = triple
        keys = list(missing)
        for start in range(0, len(keys), self._triples_per_piece):
            piece = keys[start : start + self._triples_per_piece]
            scores = self._score([missing[key] for key in piece])
            for key, score in zip(piece, scores, strict=True):
                if not math.isfinite(score):
                    seen = f"the source {missing[key].source!r}" if missing[key].source else f"the answer {missing[key].output!r}"
                    raise ValueError(f"{self._metric.title} gives {score} to {seen}; check its checkpoint")
            journal.add([{"key": key, "answer": score} for key, score in zip(piece, scores)])
            self._known.update(zip(piece, scores))
        return [[self._known[_key(triple)] for triple in item.triples(self._metric)] for item in items]


def _key(triple: Triple) -> str:
    return digest_bytes(json.dumps(triple, ensure_ascii=False).encode())


def metric_of_items(
    items: Sequence[Item], scores: Sequence[Sequence[float]], metric: LearnedMetric = COMET
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Metrics of a task, times 100, and the value of every item.

    An item's score is the mean over its runs; their spread is the standard deviation between the runs' means, as for chrF.

    Returns:
        (metrics as `result.json` has them, metric -> value per item)
    """
    runs = [[_SCALE * score for score in found[: len(item.outputs)]] for item, found in zip(items, scores, strict=True)]
    values: dict[str, list[Any]] = {metric.name: [fmean(run) for run in runs]}
    if all(item.source for item in items):
        values[f"{metric.name}_copy"] = [_SCALE * found[-1] for found in scores]
    groups = [item.group for item in items]
    metrics: dict[str, Any] = {}
    for name, column in values.items():
        estimate = ratio_interval(column, clusters=groups)
        stderr = stdev(column) / math.sqrt(len(column)) if len(column) > 1 else None
        metrics[name] = {**estimate.figures(), "stderr": stderr}
    if len(runs[0]) > 1:
        values[f"{metric.name}_sd"] = runs
        spread = stdev(fmean(run) for run in zip(*runs, strict=True))
        metrics[f"{metric.name}_sd"] = {
            "value": spread,
            "stderr": None,
            "low": None,
            "high": None,
            "n": len(runs),
            "units": len(set(groups)),
        }
    return metrics, values


def score_results(
    results_dir: Path,
    output_dir: Path,
    *,
    scores: RememberedScores,
    model: Mapping[str, str],
    tasks: Sequence[str] = (),
    metric: LearnedMetric = COMET,
) -> dict[str, Any]:
    """Score the answers of one model, and write its folder anew with these scores beside all other figures.

    Scores are kept in a dot folder beside `output_dir` until the folder is complete.

    Args:
        model: digest and name of the metric's checkpoint and the version of the package; kept with the scores.

    Returns:
        What the new `result.json` says.

    Raises:
        ValueError: if there is nothing to score, source or reference is missing, or `output_dir` is not empty.
    """
    result = load_result(results_dir / RESULT_NAME)
    chosen = {task: read_items(results_dir, task, metric) for task in scorable_tasks(result, results_dir, tasks, metric=metric)}
    unfinished = output_dir.parent / f".{metric.name}" / f"{output_dir.name}.{model['digest'].removeprefix('xxh3:')[:16]}.jsonl"
    journal = Journal(unfinished)
    found = {task: metric_of_items(items, scores.of(items, journal), metric) for task, items in chosen.items()}
    manifest = read_manifest(results_dir)
    with staged_directory(output_dir) as staging:
        shutil.copytree(results_dir, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_NAME))
        for task, (metrics, values) in found.items():
            summary = result["tasks"][task]
            summary["metrics"] |= metrics
            summary["higher_is_better"] = (summary["higher_is_better"] or {}) | {name: not name.endswith("_sd") for name in metrics}
            summary[metric.name] = {**model, "samples": digest_file(results_dir / "samples" / f"{task}.jsonl")}
            _file_scores(staging, task, values)
        write_result(staging, result)
        write_manifest(
            staging,
            stage=f"eval.{metric.name}",
            facts=result["facts"],
            arguments={"tasks": list(found)},
            inputs={"results": manifest.digest if manifest is not None else "", metric.name: model["digest"]},
        )
    unfinished.unlink(missing_ok=True)
    if unfinished.parent.is_dir() and not any(unfinished.parent.iterdir()):
        unfinished.parent.rmdir()
    return result


def _file_scores(staging: Path, task: str, values: Mapping[str, Sequence[Any]]) -> None:
    """Write the scores into the samples of a task, which pages of single items show, and into its items, which tests compare."""
    path = staging / "samples" / f"{task}.jsonl"
    samples = read_lines(path)
    for number, sample in enumerate(samples):
        sample["metrics"] = list(dict.fromkeys([*sample["metrics"], *values]))
        sample.update((name, column[number]) for name, column in values.items())
    write_lines(path, samples)
    path = staging / "items" / f"{task}.jsonl"
    (items,) = read_lines(path)
    items["scores"] |= {name: list(column) for name, column in values.items() if not name.endswith("_sd")}
    write_lines(path, [items])


def scored_before(
    output_dir: Path, results_dir: Path, *, model: Mapping[str, str], tasks: Sequence[str], metric: LearnedMetric = COMET
) -> dict[str, Any] | None:
    """The result in `output_dir` if it holds these scores of these samples; None if there is nothing.

    Raises:
        ValueError: if it holds anything else.
    """
    if not output_dir.exists():
        return None
    path = output_dir / RESULT_NAME
    if path.is_file():
        result = load_result(path)
        expected = {task: {**model, "samples": digest_file(results_dir / "samples" / f"{task}.jsonl")} for task in tasks}
        if all(result["tasks"].get(task, {}).get(metric.name) == facts for task, facts in expected.items()):
            return result
    raise ValueError(f"{output_dir} exists and holds other results; remove it or choose another --output")


def parser_of(metric: LearnedMetric, documentation: str | None, *, example: str, checkpoint: str) -> argparse.ArgumentParser:
    """The options of every metric's command; `example` is what follows its results, `checkpoint` the help of that option."""
    prog = f"eval.{metric.name}"
    parser = command.parser(documentation, example=f"python -m {prog} --results results/ {example} --output scored/")
    add_option(parser, "--results DIR", "folders with results of eval.harness", nargs="+", type=Path, required=True)
    add_option(parser, "--checkpoint PATH", checkpoint, type=Path, required=True)
    tasks = f"tasks whose answers are scored, each a {metric.answers} (default: all that were evaluated)"
    add_option(parser, "--tasks TASK", tasks, [], nargs="+")
    add_option(parser, "--output DIR", "folder to write: one folder of results per model", type=Path, required=True)
    add_option(parser, "--device", "device: cpu, cuda or cuda:1 ... (default: cuda where there is one)")
    add_option(parser, "--batch-size", "answers per forward pass", 16)
    return parser


def score_folders(
    folders: Sequence[Path],
    output_dir: Path,
    metric: LearnedMetric,
    *,
    tasks: Sequence[str],
    find: Callable[[], dict[str, str]],
    open_scorer: Callable[[], Scorer],
) -> str:
    """Score the models below some folders, each into a folder of `output_dir`; returns a table of the scores.

    Args:
        tasks: those wanted; all that can be scored if empty.
        find: looks at the metric's files, and tells name, digest and package.
        open_scorer: loads the metric; not called where everything was scored before.

    Raises:
        ValueError: as the others here, before anything is loaded.
    """
    found = _folders_by_name(folders)
    chosen = {name: scorable_tasks(load_result(folder / RESULT_NAME), folder, tasks, metric=metric) for name, folder in found.items()}
    model = find()
    results = {
        name: scored_before(output_dir / name, folder, model=model, tasks=chosen[name], metric=metric) for name, folder in found.items()
    }
    be_quiet_and_offline()
    scores = None
    for number, (name, folder) in enumerate(found.items(), start=1):
        description = "scored before"
        if results[name] is None:
            scores = scores or RememberedScores(open_scorer(), metric=metric)
            results[name] = score_results(folder, output_dir / name, scores=scores, model=model, tasks=chosen[name], metric=metric)
            description = "scored"
        print(f"[{number}/{len(found)}] {name}: {description}", file=sys.stderr, flush=True)
    surface = " or ".join({"chrf_sentence": "chrF of sentences", "rougeL": "ROUGE-L"}[name] for name in metric.found_by)
    header = ["model", "task", "n", surface, metric.title, f"{metric.title} of a copy"]
    rows = []
    for name, result in results.items():
        assert result is not None
        rows += [_table_row(name, task, result["tasks"][task]["metrics"], metric) for task in chosen[name]]
    return markdown_table(header, rows, text_columns=2)


def _table_row(name: str, task: str, metrics: Mapping[str, Any], metric: LearnedMetric) -> list[str]:
    score, copy = metrics[metric.name], metrics.get(f"{metric.name}_copy")
    surface = next(found for found in metric.found_by if found in metrics)
    interval = (
        f"{score['value']:.2f}"
        if None in (score["low"], score["high"])
        else f"{score['value']:.2f} [{score['low']:.2f}, {score['high']:.2f}]"
    )
    return [name, task, str(score["n"]), f"{metrics[surface]['value']:.2f}", interval, "–" if copy is None else f"{copy['value']:.2f}"]


def _folders_by_name(folders: Sequence[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in find_results(folders):
        name = path.resolve().parent.name
        if name in found and found[name] != path.resolve().parent:
            raise ValueError(f"two models are called {name} ({found[name]} and {path.parent}); score them into two --output folders")
        found[name] = path.resolve().parent
    return found
