"""COMET of a model's saved translations: what is scored, what was scored before, and how scores are filed beside the others.

Nothing of lm-eval is imported: this runs in COMET's own environment.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from conversion.intervals import ratio_interval
from data_prep.artifacts import MANIFEST_NAME, digest_bytes, digest_file, read_manifest, staged_directory, write_manifest
from eval.journal import Journal
from eval.results import RESULT_NAME, load_result, read_lines, write_lines, write_result

METRIC = "comet"
_EVERY_TRANSLATION_HAS = "chrf_sentence"
_SCALE = 100  # as the papers print it: 86.57, not 0.8657


class Triple(NamedTuple):
    """What COMET looks at."""

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

    def triples(self) -> list[Triple]:
        """The translations, then the source as its own translation: what copying would score."""
        return [Triple(self.source, output, self.reference) for output in (*self.outputs, self.source)]


def translation_tasks(result: Mapping[str, Any], path: Path, wanted: Sequence[str] = ()) -> list[str]:
    """Names of the translation tasks of a result: those wanted, else all.

    Raises:
        ValueError: if a wanted task was not evaluated or is no translation, or there is none at all.
    """
    tasks: Mapping[str, Any] = result["tasks"]
    found = [name for name, summary in tasks.items() if _EVERY_TRANSLATION_HAS in summary["metrics"]]
    for name in wanted:
        if name not in tasks:
            raise ValueError(f"{path} has no answers to {name}; it has {', '.join(tasks) or 'none'}")
        if name not in found:
            raise ValueError(f"{name} is no translation, so that COMET cannot score it; the translations in {path} are {_listed(found)}")
    if not found:
        raise ValueError(f"{path} holds no translations; COMET scores tasks such as flores_en_it and mt_en_de, it has {_listed(tasks)}")
    return list(wanted) or found


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"


def read_items(results_dir: Path, task: str) -> list[Item]:
    """The translations that a model's folder of results holds.

    Raises:
        ValueError: if samples are missing, or one lacks source, reference or answer.
    """
    path = results_dir / "samples" / f"{task}.jsonl"
    samples = read_lines(path)
    if not samples:
        raise ValueError(f"{path} is empty; evaluate the model again")
    return [_item(sample, path) for sample in samples]


def _item(sample: Mapping[str, Any], path: Path) -> Item:
    document = sample["doc"]
    identity = str(document.get("id", sample["doc_id"]))
    references = document.get("references")
    if not document.get("source"):
        raise ValueError(f"item {identity} of {path} has no source; COMET needs source, translation and reference")
    if not references or not references[0]:
        raise ValueError(f"item {identity} of {path} has no reference; COMET needs source, translation and reference")
    # What the task itself scored: one text, or one list with a text of each run.
    answers = sample["filtered_resps"]
    outputs = answers if isinstance(answers[0], str) else answers[0]
    texts = tuple(str(text).strip() for text in outputs)
    return Item(identity, str(document.get("group", identity)), str(document["source"]), str(references[0]), texts)


class RememberedScores:
    """Scores of triples, asked for in pieces and written as they come; no triple is ever scored twice, of whichever model it is."""

    def __init__(self, score: Scorer, *, triples_per_piece: int = 512) -> None:
        self._score = score
        self._triples_per_piece = triples_per_piece
        self._known: dict[str, float] = {}

    def of(self, items: Sequence[Item], journal: Journal) -> list[list[float]]:
        """For every item the scores of its translations, and last the one of a copy, on COMET's own scale.

        Args:
            journal: scores of an interrupted run, which goes on from there.

        Raises:
            ValueError: if a score is not finite.
        """
        missing: dict[str, Triple] = {}
        for triple in (triple for item in items for triple in item.triples()):
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
                    raise ValueError(f"COMET gives {score} to the source {missing[key].source!r}; check its checkpoint")
            journal.add([{"key": key, "answer": score} for key, score in zip(piece, scores)])
            self._known.update(zip(piece, scores))
        return [[self._known[_key(triple)] for triple in item.triples()] for item in items]


def _key(triple: Triple) -> str:
    return digest_bytes(json.dumps(triple, ensure_ascii=False).encode())


def metric_of_items(items: Sequence[Item], scores: Sequence[Sequence[float]]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Metrics of a task, times 100, and the value of every item.

    An item's score is the mean over its runs; their spread is the standard deviation between the runs' means, as for chrF.

    Returns:
        (metrics as `result.json` has them, metric -> value per item)
    """
    runs = [[_SCALE * score for score in item[:-1]] for item in scores]
    values: dict[str, list[Any]] = {METRIC: [fmean(run) for run in runs], f"{METRIC}_copy": [_SCALE * item[-1] for item in scores]}
    groups = [item.group for item in items]
    metrics: dict[str, Any] = {}
    for name, column in values.items():
        estimate = ratio_interval(column, clusters=groups)
        stderr = stdev(column) / math.sqrt(len(column)) if len(column) > 1 else None
        metrics[name] = {**estimate.figures(), "stderr": stderr}
    if len(runs[0]) > 1:
        values[f"{METRIC}_sd"] = runs
        spread = stdev(fmean(run) for run in zip(*runs, strict=True))
        metrics[f"{METRIC}_sd"] = {"value": spread, "stderr": None, "low": None, "high": None, "n": len(runs), "units": len(set(groups))}
    return metrics, values


def score_results(
    results_dir: Path, output_dir: Path, *, scores: RememberedScores, model: Mapping[str, str], tasks: Sequence[str] = ()
) -> dict[str, Any]:
    """Score the translations of one model, and write its folder anew with COMET beside all other figures.

    Scores are kept in a dot folder beside `output_dir` until the folder is complete.

    Args:
        model: digest and name of the COMET checkpoint and the version of the package; kept with the scores.

    Returns:
        What the new `result.json` says.

    Raises:
        ValueError: if there is nothing to score, source or reference is missing, or `output_dir` is not empty.
    """
    result = load_result(results_dir / RESULT_NAME)
    chosen = {task: read_items(results_dir, task) for task in translation_tasks(result, results_dir, tasks)}
    unfinished = output_dir.parent / ".comet" / f"{output_dir.name}.{model['digest'].removeprefix('xxh3:')[:16]}.jsonl"
    journal = Journal(unfinished)
    found = {task: metric_of_items(items, scores.of(items, journal)) for task, items in chosen.items()}
    manifest = read_manifest(results_dir)
    with staged_directory(output_dir) as staging:
        shutil.copytree(results_dir, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_NAME))
        for task, (metrics, values) in found.items():
            summary = result["tasks"][task]
            summary["metrics"] |= metrics
            summary["higher_is_better"] = (summary["higher_is_better"] or {}) | {name: not name.endswith("_sd") for name in metrics}
            summary["comet"] = {**model, "samples": digest_file(results_dir / "samples" / f"{task}.jsonl")}
            _file_scores(staging, task, values)
        write_result(staging, result)
        write_manifest(
            staging,
            stage="eval.comet",
            facts=result["facts"],
            arguments={"tasks": list(found)},
            inputs={"results": manifest.digest if manifest is not None else "", "comet": model["digest"]},
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


def scored_before(output_dir: Path, results_dir: Path, *, model: Mapping[str, str], tasks: Sequence[str]) -> dict[str, Any] | None:
    """The result in `output_dir` if it holds these scores of these samples; None if there is nothing.

    Raises:
        ValueError: if it holds anything else.
    """
    if not output_dir.exists():
        return None
    path = output_dir / RESULT_NAME
    if path.is_file():
        result = load_result(path)
        wanted = {task: {**model, "samples": digest_file(results_dir / "samples" / f"{task}.jsonl")} for task in tasks}
        if all(result["tasks"].get(task, {}).get("comet") == facts for task, facts in wanted.items()):
            return result
    raise ValueError(f"{output_dir} exists and holds other results; remove it or choose another --output")
