"""The 95 % interval of a task's score from its items, whatever the score adds them up to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from conversion.measuring.intervals import Estimate, Floats, counted_interval, ratio_interval, share_interval
from eval.protocols import scoring
from eval.scoring.statistics import f1_interval

_CHRF_BETA_SQUARED = 4
_CHRF_ORDER = 6
_BLEU_ORDER = 4


def score_interval(
    values: Sequence[Any], aggregation: Callable[..., Any], *, clusters: Sequence[str] | None = None, out_of: int = 1
) -> Estimate | None:
    """Score and interval from the items' values; None for aggregations that have none here (spread between runs, perplexities).

    Args:
        values: one per item, of the kind that the aggregation takes.
        clusters: of each item; items of one passage or story are one unit.
        out_of: the highest score of an item; only zeros and ones of 1 are shares, while a chrF of 0 of 100 for all items is none.
    """
    if aggregation is scoring.macro_f1:
        gold, predicted = [v[0] for v in values], [None if v[1] < 0 else v[1] for v in values]
        return f1_interval(gold, predicted, num_classes=values[0][2], clusters=clusters)
    if aggregation in scoring.OF_VALID:
        return _valid_f1_interval(values, clusters, scoring.OF_VALID[aggregation])
    if aggregation is scoring.f1_over_answers:
        hits, sizes = [2 * v[0] for v in values], [v[1] + v[2] for v in values]
        return ratio_interval(hits, sizes, clusters=clusters, bounds=(0, 1)) if any(sizes) else None
    if aggregation is scoring.share_all_right:
        return _questions_interval(values, clusters)
    name = getattr(aggregation, "__name__", "")
    if name in ("chrf", "bleu"):
        statistics, score = (_chrf_counts(values), chrf_of_counts) if name == "chrf" else (_bleu_counts(values), bleu_of_counts)
        return counted_interval(statistics, score, clusters=clusters, most=100)
    if name not in ("mean", "nanmean") or not all(isinstance(value, int | float) for value in values):
        return None
    return _mean_interval([float(value) for value in values], clusters, out_of)


def _valid_f1_interval(answers: Sequence[scoring.Answer], clusters: Sequence[str] | None, of_class: int | None) -> Estimate | None:
    kept = [number for number, answer in enumerate(answers) if answer[1] >= 0]
    if not kept:
        return None
    gold, predicted = [answers[number][0] for number in kept], [answers[number][1] for number in kept]
    groups = None if clusters is None else [clusters[number] for number in kept]
    return f1_interval(gold, predicted, num_classes=answers[0][2], of_class=of_class, clusters=groups)


def _questions_interval(answers: Sequence[tuple[str, float]], clusters: Sequence[str] | None) -> Estimate:
    """Share of questions all of whose answers are right."""
    questions: dict[str, float] = {}
    group_of: dict[str, str] = {}
    for number, (question, right) in enumerate(answers):
        questions[question] = min(questions.get(question, 1.0), right)
        group_of[question] = question if clusters is None else clusters[number]
    return share_interval(list(questions.values()), list(group_of.values()))


def _mean_interval(values: Sequence[float], clusters: Sequence[str] | None, out_of: int) -> Estimate | None:
    """Of the items that count: accuracy on valid answers is of those alone."""
    counting = [number for number, value in enumerate(values) if not math.isnan(value)]
    if not counting:
        return None
    counted = [values[number] for number in counting]
    groups = None if clusters is None else [clusters[number] for number in counting]
    if out_of == 1 and set(counted) <= {0.0, 1.0}:
        return share_interval(counted, groups)
    is_bounded = min(counted) >= 0 and max(counted) <= out_of  # a user's own mean may be of anything
    return ratio_interval(counted, clusters=groups, bounds=(0, out_of) if is_bounded else (-math.inf, math.inf))


def _chrf_counts(pairs: Sequence[tuple[str, str]]) -> Floats:
    """(sentences, 3 * orders) of sacrebleu's n-gram counts: of the output, of the reference, of both."""
    from sacrebleu.metrics.chrf import CHRF

    references, outputs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return np.asarray(CHRF()._extract_corpus_statistics(outputs, [references]), dtype=float)


def chrf_of_counts(counts: Floats) -> Floats:
    """Corpus chrF2 (Popović 2015, sacrebleu's defaults), 0 to 100, of summed counts: (corpora, 3 * orders) -> (corpora,)."""
    by_order = counts.reshape(len(counts), _CHRF_ORDER, 3)
    output, reference, both = by_order[..., 0], by_order[..., 1], by_order[..., 2]
    known = (output > 0) & (reference > 0)
    orders = np.maximum(known.sum(axis=1), 1)
    precision = np.divide(both, output, out=np.zeros_like(both), where=known).sum(axis=1) / orders
    recall = np.divide(both, reference, out=np.zeros_like(both), where=known).sum(axis=1) / orders
    below = _CHRF_BETA_SQUARED * precision + recall
    return 100 * np.divide((1 + _CHRF_BETA_SQUARED) * precision * recall, below, out=np.zeros_like(below), where=below > 0)


def _bleu_counts(pairs: Sequence[tuple[str, str]]) -> Floats:
    """(sentences, 2 + 2 * orders) of sacrebleu's counts: lengths of output and reference, matching n-grams, n-grams of the output."""
    from sacrebleu.metrics.bleu import BLEU

    references, outputs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return np.asarray(BLEU()._extract_corpus_statistics(outputs, [references]), dtype=float)


def bleu_of_counts(counts: Floats) -> Floats:
    """Corpus BLEU (Papineni et al. 2002) with sacrebleu's exponential smoothing, 0 to 100: (corpora, 2 + 2 * orders) -> (corpora,)."""
    output_size, reference_size = counts[:, 0], counts[:, 1]
    log_precision, smoothing = np.zeros(len(counts)), np.ones(len(counts))
    defined = counts[:, 2 : 2 + _BLEU_ORDER].any(axis=1)  # without any match BLEU is 0, not the product of smoothed orders
    for order in range(_BLEU_ORDER):
        both, total = counts[:, 2 + order], counts[:, 2 + _BLEU_ORDER + order]
        none = (both == 0) & (total > 0)
        smoothing = np.where(none, smoothing * 2, smoothing)
        precision = np.where(none, 1 / (smoothing * np.maximum(total, 1)), both / np.maximum(total, 1))
        defined &= total > 0
        log_precision += np.log(np.where(precision > 0, precision, 1.0))
    too_short = output_size < reference_size
    brevity = np.where(too_short, np.exp(1 - reference_size / np.maximum(output_size, 1)), 1.0)
    return np.where(defined, 100 * brevity * np.exp(log_precision / _BLEU_ORDER), 0.0)
