"""The tasks that an encoder is fine-tuned for in one language and scored in all: names (WikiAnn), parts of speech (UD), topics (Taxi1500).

Protocol and hyperparameters are those of OFA (section 5.3 and the scripts that its authors publish): training on English, the epoch that is
best on English development rows, the test rows of every language as they are.

Labels of words are scored as spans by the rules of seqeval, which reads the first letter of a label as its place in a span (B, I, E, S, or
outside: O) and what follows as its kind; without a dash too, so that parts of speech become spans of equal neighbours, SCONJ and CCONJ of one
kind (CONJ).  XTREME, and OFA after it, call the F1 of these spans the F1 of parts of speech; the accuracy of words stands beside it here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.artifacts import digest_bytes
from conversion.measuring.intervals import Estimate, Floats, counted_interval, t_quantile
from eval.protocols.rows import Rows, field, read_rows
from eval.scoring.statistics import confusions, mean_f1_of_tables

FOLDER = "encoders"  # below the folder of evaluation data
_SUFFIXES = (".jsonl.gz", ".jsonl")
Prediction = list[str]  # labels of the words of a sentence; of a text one


@dataclass(frozen=True)
class FineTuning:
    """How a model is fine-tuned.

    Attributes:
        global_batch_size: sentences or texts of a step.
        max_tokens: of a passage, special tokens among them; longer sentences are cut between words, longer texts at their end.
        max_grad_norm: gradients are scaled down to this norm; None leaves them.
    """

    learning_rate: float
    global_batch_size: int
    epochs: int
    max_tokens: int
    max_grad_norm: float | None

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"--learning-rate is {self.learning_rate}; expected more than 0 and less than 1")
        for name in ("global_batch_size", "epochs", "max_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be greater than 0")


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        of_words: whether each word has a label, or each text one.
        headline: the score that tables show, and by which an epoch is chosen.
        paper: OFA's settings.
    """

    name: str
    title: str
    of_words: bool
    headline: str
    paper: FineTuning


_TAGGING = FineTuning(learning_rate=2e-5, global_batch_size=32, epochs=10, max_tokens=256, max_grad_norm=1.0)
TASKS = {
    task.name: task
    for task in (
        Task("ner", "names (WikiAnn)", True, "f1", _TAGGING),
        Task("pos", "parts of speech (UD)", True, "f1", _TAGGING),
        Task("taxi1500", "topics (Taxi1500)", False, "macro_f1", FineTuning(1e-5, 16, 40, 100, None)),
    )
}


@dataclass(frozen=True)
class Labelled:
    """Rows of one language and split.

    Attributes:
        inputs: words of each sentence; of a text one entry, the text.
        labels: of the words; of a text one.
    """

    ids: tuple[str, ...]
    inputs: tuple[tuple[str, ...], ...]
    labels: tuple[tuple[str, ...], ...]

    def digest(self) -> str:
        """Identity of what is asked and wanted."""
        return digest_bytes(json.dumps([self.ids, self.inputs, self.labels], ensure_ascii=False).encode())


def languages_of(data: Path, task: Task) -> list[str]:
    """Languages that the evaluation data has rows of.

    Raises:
        ValueError: if there is none.
    """
    folder = data / FOLDER / task.name
    found = {path.name.removesuffix(suffix) for path in folder.glob("*") for suffix in _SUFFIXES if path.name.endswith(suffix)}
    if not found:
        raise ValueError(f"{folder} has no rows of {task.title}; make them with `python -m eval.prepare`")
    return sorted(found)


def labelled_rows(data: Path, task: Task, language: str, split: str) -> Labelled:
    """Rows of a language's split.

    Raises:
        ValueError: if there are none, one is empty, or has not one label for each word.
    """
    rows = read_rows(data, Rows(f"{FOLDER}/{task.name}/{language}", split))
    return Labelled(
        tuple(str(row["id"]) for row in rows),
        tuple(_words(row) if task.of_words else (_text(row),) for row in rows),
        tuple(_word_labels(row) if task.of_words else (str(field(row, "label")),) for row in rows),
    )


def joined(parts: Sequence[Labelled]) -> Labelled:
    """Rows of several languages, one after the other."""
    return Labelled(*(tuple(entry for part in parts for entry in getattr(part, name)) for name in ("ids", "inputs", "labels")))


def _words(row: Mapping[str, Any]) -> tuple[str, ...]:
    words = field(dict(row), "words")
    if not words or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(f"the row {row['id']} has {'an empty word' if words else 'no words'}; leave it out, or prepare the set again")
    return tuple(words)


def _text(row: Mapping[str, Any]) -> str:
    text = str(field(dict(row), "text"))
    if not text.strip():
        raise ValueError(f"the row {row['id']} has an empty text; leave it out, or prepare the set again")
    return text


def _word_labels(row: Mapping[str, Any]) -> tuple[str, ...]:
    labels, words = field(dict(row), "labels"), row["words"]
    if len(labels) != len(words) or not all(isinstance(label, str) and label for label in labels):
        raise ValueError(f"the row {row['id']} has {len(words)} words and {len(labels)} labels; expected one for each word")
    return tuple(labels)


def label_names(task: Task, training: Sequence[Labelled]) -> list[str]:
    """Labels of the training rows, in the order of the alphabet, which is that of the head's outputs.

    Raises:
        ValueError: if there are fewer than two.
    """
    names = sorted({label for rows in training for labels in rows.labels for label in labels})
    if len(names) < 2:
        raise ValueError(f"the training rows of {task.name} have {len(names)} label ({', '.join(names)}); expected two at least")
    return names


def require_known(task: Task, language: str, rows: Labelled, names: Sequence[str], *, otherwise: str) -> None:
    """Refuse labels that training never had, which no model could give.

    Args:
        otherwise: what else can be done than correct the row.

    Raises:
        ValueError: naming them and the first row.
    """
    known = set(names)
    for identity, labels in zip(rows.ids, rows.labels, strict=True):
        if new := sorted(set(labels) - known):
            raise ValueError(
                f"the row {identity} of {task.name} in {language} has the label {', '.join(new)}, which the training rows never had (they"
                f" have {', '.join(names)}); correct the row, or {otherwise}"
            )


def scores(task: Task, rows: Labelled, predicted: Sequence[Sequence[Prediction]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The task's metrics over seeds, its headline first, and the spread of that between seeds.

    Args:
        predicted: of each seed, of each row.
    """
    metrics: dict[str, dict[str, Any]] = {}
    for name, (counts, score) in _counted(task, rows, predicted, names).items():
        by_seed = [float(score(one.sum(axis=0)[None])[0]) for one in counts]
        metrics[name] = _over_seeds(counts, score, by_seed)
    headline = [float(value) for value in metrics[task.headline]["by_seed"]]
    if len(headline) > 1:
        spread = float(np.std(headline, ddof=1))
        metrics[f"{task.headline}_sd"] = {
            "value": spread,
            "low": None,
            "high": None,
            "n": len(headline),
            "units": len(headline),
            "stderr": None,
        }
    return metrics


def headline_value(task: Task, rows: Labelled, predicted: Sequence[Prediction], names: Sequence[str]) -> float:
    """The headline of one seed."""
    counts, score = _counted(task, rows, [predicted], names)[task.headline]
    return float(score(counts[0].sum(axis=0)[None])[0])


def _counted(
    task: Task, rows: Labelled, predicted: Sequence[Sequence[Prediction]], names: Sequence[str]
) -> dict[str, tuple[list[Floats], Any]]:
    """Metric -> counts of each seed, (rows, counts), and the score of summed ones."""
    if task.of_words:
        return {
            "f1": ([span_counts(rows.labels, one) for one in predicted], f1_of_counts),
            "acc": ([word_counts(rows.labels, one) for one in predicted], _share),
        }
    number = {name: index for index, name in enumerate(names)}
    gold = [number[labels[0]] for labels in rows.labels]
    tables = [confusions(gold, [number[labels[0]] for labels in one], num_classes=len(names)) for one in predicted]
    return {
        "macro_f1": (tables, lambda counts: mean_f1_of_tables(counts, len(names))),
        "acc": ([word_counts(rows.labels, one) for one in predicted], _share),
    }


def _share(counts: Floats) -> Floats:
    share: Floats = counts[:, 0] / counts[:, 1]
    return share


def _over_seeds(counts: Sequence[Floats], score: Any, by_seed: Sequence[float]) -> dict[str, Any]:
    """Mean over seeds with an interval of both what the rows and what the seeds leave open, whose errors add up by their squares."""
    num_counts = counts[0].shape[1]

    def mean_score(joined: Floats) -> Floats:
        parts = [score(joined[:, first : first + num_counts]) for first in range(0, joined.shape[1], num_counts)]
        mean: Floats = np.mean(parts, axis=0)
        return mean

    rows: Estimate = counted_interval(np.hstack(list(counts)), mean_score)
    down, up = rows.value - rows.low, rows.high - rows.value
    if len(by_seed) > 1:
        half = t_quantile(len(by_seed)) * float(np.std(by_seed, ddof=1)) / len(by_seed) ** 0.5
        down, up = float(np.hypot(down, half)), float(np.hypot(up, half))
    told = {**rows.figures(), "low": max(0.0, rows.value - down), "high": min(1.0, rows.value + up)}
    return {**told, "stderr": None, "by_seed": list(by_seed)}


def told(task: Task, settings: FineTuning, *, train: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """What decides the figures beside model and rows, for results."""
    differs = {name: value for name, value in asdict(settings).items() if value != getattr(task.paper, name)}
    return {**asdict(settings), "train": list(train), "seeds": list(seeds), "unlike the paper": differs}


Labels = Sequence[str]
Span = tuple[str, int, int]  # kind, first and last word, counted over all sentences

_OUTSIDE = "O"


def spans(sentences: Sequence[Labels]) -> list[set[Span]]:
    """Spans that end in each sentence, as seqeval 1.2.2 finds them without its strict mode.

    Words are counted over all sentences, with one place between two of them, because seqeval does: after a sentence that begins with a label
    of one letter (X), its spans may begin where an earlier one did.
    """
    found: list[set[Span]] = [set() for _ in sentences]
    mark_before, kind_before, begin, place = _OUTSIDE, "", 0, 0
    for number, labels in enumerate(sentences):
        for label in (*labels, _OUTSIDE):
            mark, kind = label[0], label[1:].split("-", 1)[-1] or "_"
            if _ends(mark_before, mark, other_kind=kind != kind_before):
                found[number].add((kind_before, begin, place - 1))
            if _begins(mark_before, mark, other_kind=kind != kind_before):
                begin = place
            mark_before, kind_before, place = mark, kind, place + 1
    return found


def _ends(before: str, mark: str, *, other_kind: bool) -> bool:
    """Whether a span ends before a label."""
    return before in "ES" or (before in "BI" and mark in "BSO") or (before not in "O." and other_kind)


def _begins(before: str, mark: str, *, other_kind: bool) -> bool:
    """Whether a span begins with a label."""
    return mark in "BS" or (before in "ESO" and mark in "EI") or (mark not in "O." and other_kind)


def span_counts(gold: Sequence[Labels], predicted: Sequence[Labels]) -> Floats:
    """(sentences, 3): spans that are right, found and wanted.

    Raises:
        ValueError: if a sentence has more or fewer labels in one than in the other.
    """
    for number, (expected, found) in enumerate(zip(gold, predicted, strict=True), start=1):
        if len(expected) != len(found):
            raise ValueError(f"sentence {number} has {len(expected)} words and {len(found)} predicted labels; expected one for each word")
    both = zip(spans(gold), spans(predicted), strict=True)
    return np.array([[len(expected & found), len(found), len(expected)] for expected, found in both], dtype=float).reshape(-1, 3)


def f1_of_counts(counts: Floats) -> Floats:
    """F1 of summed counts, (corpora, 3) -> (corpora,); 0 where nothing is found nor wanted."""
    right, found, expected = counts.T
    both = found + expected
    f1: Floats = np.divide(2 * right, both, out=np.zeros(len(counts)), where=both > 0)
    return f1


def word_counts(gold: Sequence[Labels], predicted: Sequence[Labels]) -> Floats:
    """(sentences, 2): words with the right label, and words."""
    return np.array(
        [
            [sum(a == b for a, b in zip(expected, found, strict=True)), len(expected)]
            for expected, found in zip(gold, predicted, strict=True)
        ],
        dtype=float,
    ).reshape(-1, 2)
