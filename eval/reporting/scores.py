"""Scores as tables show them: name, value, interval, what no skill reaches, and whether two models differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conversion.measuring.significance import Difference, holm, paired_difference, with_seeds
from eval.reporting.runs import Evaluated, Report
from eval.running.results import SHARES, highest_score, score_names
from eval.scoring.learned_scores import METRICS

_NAMES = {
    "acc": "accuracy",
    "invalid": "invalid answers",
    "acc_norm": "accuracy, by length",
    "acc_valid": "accuracy, valid only",
    "macro_f1": "macro F1",
    "macro_f1_valid": "macro F1, valid only",
    "f1_answers": "F1 of answers",
    "f1_items": "F1 of an item, valid only",
    "f1_entailment": "F1 of entailment, valid only",
    "f1_neutral": "F1 of neutral, valid only",
    "f1_contradiction": "F1 of contradiction, valid only",
    "exact_match": "exact match",
    "f1": "F1",
    "exact_match_italian": "exact match, Italian rule",
    "f1_italian": "F1, Italian rule",
    "sari": "SARI",
    "chrf": "chrF",
    "bleu": "BLEU",
    "chrf_sentence": "chrF of sentences",
    **{metric.name: metric.title for metric in METRICS},
    "rougeL": "ROUGE-L",
    "rougeL_first": "ROUGE-L, first answer",
    "rougeL_max": "ROUGE-L, best answer",
}
PSEUDO_BITS = "pseudo_bits_per_byte"
_LEARNED = {metric.name for metric in METRICS}
LEVEL = 0.05  # of all tests of a report together
LANGUAGES = {"sl": "Slovene", "en": "English", "it": "Italian", "hr": "Croatian", "sr": "Serbian"}


@dataclass(frozen=True)
class Score:
    """One figure of one model, in the unit that is printed (percent for shares).

    Attributes:
        n: items that count; of accuracy on valid answers the valid ones.
        units: how many of them are independent.
        higher_is_better: of the metric.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    units: int
    higher_is_better: bool

    def text(self) -> str:
        """Value with its interval."""
        return self.value_text() if self.low is None or self.high is None else f"{self.value_text()} {self.interval_text()}"

    def value_text(self) -> str:
        """Value alone."""
        return _digits(self.value, self.value)

    def interval_text(self) -> str:
        """Interval alone, as many digits as the value."""
        return "" if self.low is None or self.high is None else f"[{_digits(self.low, self.value)}, {_digits(self.high, self.value)}]"

    def count_text(self) -> str:
        """Items, and groups of them where they do not stand alone."""
        return str(self.n) if self.units == self.n else f"{self.n} in {self.units} group{'' if self.units == 1 else 's'}"


def _digits(number: float, like: float) -> str:
    return f"{number:.3f}" if abs(like) < 10 and like != 0 else f"{number:.1f}"


@dataclass(frozen=True)
class Line:
    """One line of the table of scores: a metric of a task, or bits per byte of a text.

    Attributes:
        source: name of task or text.
        metric: lm-eval's name; `bits_per_byte` for a text, of masked models `pseudo_bits_per_byte`.
        headline: one of those that tests and figures take.
    """

    source: str
    metric: str
    is_text: bool
    headline: bool

    @property
    def label(self) -> str:
        """For people."""
        if self.is_text:
            return f"{LANGUAGES.get(self.source, self.source)}, {'pseudo ' if self.is_pseudo else ''}bits per byte"
        return f"{self.source}, {_NAMES.get(self.metric, self.metric)}"

    @property
    def is_pseudo(self) -> bool:
        """Whether a text was filled in by a masked model, which is another figure than that of one that predicts it."""
        return self.is_text and self.metric == PSEUDO_BITS

    @property
    def scale(self) -> float:
        """100 where a share is printed as a percentage."""
        return 100.0 if not self.is_text and self.metric in SHARES else 1.0

    def score(self, model: Evaluated) -> Score | None:
        """The model's figure, None if it was not evaluated so."""
        if self.is_text:
            figures = (model.pseudo_texts if self.is_pseudo else model.texts).get(self.source)
            if figures is None:
                return None
            documents = figures["num_documents"]
            return Score(figures[self.metric], figures["low"], figures["high"], documents, documents, False)
        task = model.tasks.get(self.source)
        entry = None if task is None else task["metrics"].get(self.metric)
        if task is None or entry is None or entry["value"] is None:
            return None
        low, high = (None if entry[end] is None else self.scale * entry[end] for end in ("low", "high"))
        better = bool((task["higher_is_better"] or {}).get(self.metric, True))
        return Score(self.scale * entry["value"], low, high, entry["n"], entry["units"], better)

    def no_skill(self, model: Evaluated) -> tuple[str, float] | None:
        """What needs no skill and scores this: the most frequent answer, or a copy of the source."""
        task = {} if self.is_text else model.tasks.get(self.source, {})
        if self.metric == "acc" and task.get("majority"):
            return f"always {task['majority']['answer']}", self.scale * task["majority"]["acc"]
        copy = task.get("metrics", {}).get(f"{self.metric}_copy")
        return None if copy is None else ("copy of the source", self.scale * copy["value"])


def lines(report: Report) -> list[Line]:
    """All lines of the table of scores: texts first, then tasks, each with its headline first; COMET and BLEURT are more headlines."""
    found = [Line(text, "bits_per_byte", True, True) for text in report.texts]
    found += [Line(text, PSEUDO_BITS, True, True) for text in report.pseudo_texts]
    for task in report.tasks:
        asked = [model.tasks[task]["metrics"] for run in report.runs for model in run.checkpoints if task in model.tasks]
        shown = score_names(dict.fromkeys(metric for metrics in asked for metric in metrics))  # COMET may be scored for some models only
        found += [Line(task, metric, False, number == 0 or metric in _LEARNED) for number, metric in enumerate(shown)]
    return found


@dataclass(frozen=True)
class Test:
    """A model against the baseline on one headline score, and the p-value adjusted for all tests of the report.

    Attributes:
        metric: what was compared: the line's own score, or that of sentences where it is one of the corpus.
    """

    line: Line
    model: Evaluated
    metric: str
    difference: Difference
    adjusted_p_value: float
    higher_is_better: bool

    @property
    def label(self) -> str:
        """What was compared, for people."""
        return replace(self.line, metric=self.metric).label

    @property
    def better(self) -> bool:
        """Whether the model scores better than the baseline, surely or not."""
        value = self.difference.value
        return value > 0 if self.higher_is_better else value < 0

    @property
    def sure(self) -> bool:
        """Whether the difference stays significant over the whole list."""
        return self.difference.can_decide and self.adjusted_p_value < LEVEL

    @property
    def verdict(self) -> str:
        """What can be said, in a word or two."""
        if not self.difference.can_decide:
            return "too few to tell"
        return ("better" if self.better else "worse") if self.sure else "not sure"

    @property
    def better_on(self) -> int:
        """Items on which the model scores better than the baseline."""
        return self.difference.wins if self.higher_is_better else self.difference.losses

    @property
    def worse_on(self) -> int:
        """Items on which it scores worse."""
        return self.difference.losses if self.higher_is_better else self.difference.wins


def paired_tests(report: Report, all_lines: Sequence[Line]) -> list[Test]:
    """Every model against the baseline on every headline score that has figures of its items, adjusted over all of these tests together."""
    baseline, *others = report.models
    return _adjusted([found for model in others for found in _compared(model, baseline, all_lines)])


def marked(tests: Sequence[Test]) -> dict[tuple[str, str, Path], Test]:
    """The tests that are sure, by the source and metric that was compared and by the model: where a mark stands, and nowhere else."""
    return {(test.line.source, test.metric, test.model.path): test for test in tests if test.sure}


def all_pairs(report: Report, all_lines: Sequence[Line]) -> list[tuple[Evaluated, Test]]:
    """Every model against each that stands before it, with that one; adjusted over all of these tests together."""
    pairs = [(model, other) for number, model in enumerate(report.models) for other in report.models[:number]]
    compared = [(other, found) for model, other in pairs for found in _compared(model, other, all_lines)]
    tests = _adjusted([found for _, found in compared])
    return [(other, test) for (other, _), test in zip(compared, tests, strict=True)]


_Compared = tuple[Line, Evaluated, str, Difference]


def _compared(model: Evaluated, baseline: Evaluated, all_lines: Sequence[Line]) -> list[_Compared]:
    """Differences of two models on all headline scores that both have."""
    found = ((line, _difference(line, model, baseline)) for line in all_lines if line.headline)
    return [(line, model, *difference) for line, difference in found if difference is not None]


def _adjusted(compared: Sequence[_Compared]) -> list[Test]:
    tests = []
    for (line, model, metric, difference), p_value in zip(compared, holm([difference.p_value for *_, difference in compared])):
        score = line.score(model)
        assert score is not None, "only scores that both models have are compared"
        tests.append(Test(line, model, metric, difference, p_value, score.higher_is_better))
    return tests


def _difference(line: Line, model: Evaluated, baseline: Evaluated) -> tuple[str, Difference] | None:
    """What can be compared item by item, and the difference; None where nothing can."""
    if line.score(model) is None or line.score(baseline) is None:
        return None
    if line.is_text:
        ours, theirs = (one.documents(line.source, pseudo=line.is_pseudo) for one in (model, baseline))
        return line.metric, paired_difference(_bits(ours), _bits(theirs), [document["text_bytes"] for document in ours])
    ours_items, theirs_items = model.items(line.source), baseline.items(line.source)
    metric = _item_metric(line.metric, ours_items["scores"], theirs_items["scores"])
    if metric is None:
        return None
    first, second = (items["scores"][metric] for items in (ours_items, theirs_items))
    difference = paired_difference(first, second, clusters=ours_items["groups"], most=highest_score(metric))
    seeds = [(one.tasks[line.source]["metrics"].get(metric) or {}).get("by_seed") for one in (model, baseline)]
    if all(seeds):
        difference = with_seeds(difference, [our - their for our, their in zip(*seeds)])
    return metric, _scaled(difference, line.scale)


def _scaled(difference: Difference, scale: float) -> Difference:
    d = difference
    return replace(d, value=scale * d.value, low=scale * d.low, high=scale * d.high)


def difference_texts(test: Test) -> tuple[str, str]:
    """A difference and its interval, which may not be known."""
    d, digits = test.difference, 3 if test.line.is_text else 1
    known = math.isfinite(d.low) and math.isfinite(d.high)
    return f"{d.value:+.{digits}f}", f"[{d.low:+.{digits}f}, {d.high:+.{digits}f}]" if known else "–"


def _item_metric(metric: str, *scores: Mapping[str, Sequence[float | None]]) -> str | None:
    """A score of items that stands for the metric: itself, or for chrF and BLEU of the corpus chrF of sentences."""
    for name in (metric, "chrf_sentence") if metric in ("chrf", "bleu") else (metric,):
        if all(name in of_model and None not in of_model[name] for of_model in scores):
            return name
    return None


def _bits(documents: Sequence[Mapping[str, Any]]) -> list[float]:
    return [document["nats"] / math.log(2) + 8 * document["unknown_bytes"] for document in documents]


def validity_rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and rows: for every model and generative task, what of its answers could be read and was whole."""
    header = ["task and model", "n", "strict", "valid only", "invalid", "empty", "cut answers", "cut prompts"]
    rows = []
    for task in report.tasks:
        for model in report.models:
            summary = model.tasks.get(task)
            if summary is None or not ({"invalid", "empty"} & set(summary["metrics"]) or summary.get("prompt_cut")):
                continue
            metrics = summary["metrics"]
            rows.append(
                [
                    f"{task}, {model.name}",
                    str(summary["num_items"]),
                    *(_share_cell(metrics.get(name)) for name in ("acc", "acc_valid", "invalid", "empty")),
                    *(_percent(summary.get(name)) for name in ("answer_cut", "prompt_cut")),
                ]
            )
    return header, rows


def _share_cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry["value"] is None:
        return "–"
    interval = "" if None in (entry["low"], entry["high"]) else f" [{100 * entry['low']:.1f}, {100 * entry['high']:.1f}]"
    return f"{100 * entry['value']:.1f}{interval}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
