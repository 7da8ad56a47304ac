"""How sure a score is: 95 % intervals, tests between two runs on the same items, and what no skill at all would reach.

Every score here is a ratio of sums over items (a mean is a sum over a count; accuracy on valid answers, rights over valids; bits per
byte, bits over bytes), so one resampling of items serves all of them, and all runs of a task at once: the intervals of differences are
paired for free.  Scores that are no ratios (F1) are functions of such sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000
LEVEL = 0.95
_CHUNK_CELLS = 4_000_000  # counts held at once while resampling: 16 MB

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A score with its 95 % interval and the number of items behind it."""

    value: float
    low: float
    high: float
    n: int


def wilson_interval(successes: int, n: int) -> Estimate:
    """A share with Wilson's score interval (Wilson 1927), which stays within 0 and 1 and holds its level for few items.

    Raises:
        ValueError: if there are no items, or more successes than items.
    """
    from scipy.stats import norm

    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"a share needs at least one item and at most as many successes; found {successes} of {n}")
    z = float(norm.ppf(0.5 + LEVEL / 2))
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Rounding would leave the ends a last bit away from 0 and 1.
    low, high = (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)
    return Estimate(share, low, high, n)


def t_interval(values: ArrayLike) -> Estimate:
    """A mean with the interval of Student's t over its standard error: what the GaMS paper prints, not clipped, as there.

    Raises:
        ValueError: if there are fewer than two items.
    """
    from scipy.stats import t

    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        raise ValueError(f"the t interval needs at least 2 items; found {len(array)}")
    half = float(t.ppf(0.5 + LEVEL / 2, len(array) - 1)) * float(array.std(ddof=1)) / math.sqrt(len(array))
    mean = float(array.mean())
    return Estimate(mean, mean - half, mean + half, len(array))


def resampled_sums(values: Floats, *, resamples: int = RESAMPLES, seed: int = 0, clusters: Sequence[Hashable] | None = None) -> Floats:
    """Column sums over items drawn with replacement, as many as there are.

    Args:
        values: (num_items, num_columns)
        clusters: items of one cluster are drawn together (questions of one passage); None if every item stands alone.

    Returns:
        (resamples, num_columns)

    Raises:
        ValueError: if there are no items.
    """
    if len(values) == 0:
        raise ValueError("there are no items to resample")
    if clusters is not None:
        codes = {cluster: code for code, cluster in enumerate(dict.fromkeys(clusters))}
        grouped = np.zeros((len(codes), values.shape[1]))
        np.add.at(grouped, [codes[cluster] for cluster in clusters], values)
        values = grouped
    n = len(values)
    rng = np.random.default_rng(seed)
    sums = np.empty((resamples, values.shape[1]))
    chunk = max(1, _CHUNK_CELLS // n)
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = rng.integers(0, n, size=(rows, n), dtype=np.int32)
        drawn += (np.arange(rows, dtype=np.int32) * n)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        sums[start : start + rows] = counts.astype(np.float64) @ values
    return sums


def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    clusters: Sequence[Hashable] | None = None,
) -> Estimate:
    """Sum of numerators over sum of denominators, with the percentile interval of the bootstrap over items.

    All items are drawn, also those whose denominator is 0, so that the interval of accuracy on valid answers carries how many are
    valid.  Resamples without any denominator are left out.

    Args:
        denominators: None for a mean.

    Raises:
        ValueError: if there are no items, or all denominators are 0.
    """
    above = np.asarray(numerators, dtype=float)
    below = np.ones(len(above)) if denominators is None else np.asarray(denominators, dtype=float)
    if len(above) and not below.any():
        raise ValueError(f"none of the {len(above)} items counts, so the score is not defined")
    sums = resampled_sums(np.column_stack([above, below]), resamples=resamples, seed=seed, clusters=clusters)
    defined = sums[sums[:, 1] > 0]
    low, high = _percentiles(defined[:, 0] / defined[:, 1])
    return Estimate(float(above.sum() / below.sum()), low, high, len(above))


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of answers that can be invalid.

    Attributes:
        strict: an invalid answer is a wrong one; Wilson's interval.
        valid_only: over valid answers alone, as the GaMS paper has it; None if there are none.  It can rank the worse model first.
        invalid: share of invalid answers; Wilson's interval.
    """

    strict: Estimate
    valid_only: Estimate | None
    invalid: Estimate


def accuracy(right: Sequence[bool], valid: Sequence[bool], *, resamples: int = RESAMPLES, seed: int = 0) -> Accuracy:
    """Strict accuracy, accuracy on valid answers and the share of invalid ones.

    Raises:
        ValueError: if there are no items, or an answer is right but not valid.
    """
    if any(r and not v for r, v in zip(right, valid, strict=True)):
        raise ValueError("an answer is marked as right but not as valid")
    n, num_valid, num_right = len(right), sum(valid), sum(right)
    valid_only = ratio_interval(right, valid, resamples=resamples, seed=seed) if num_valid else None
    return Accuracy(wilson_interval(num_right, n), valid_only, wilson_interval(n - num_valid, n))


def macro_f1(gold: Sequence[int], predicted: Sequence[int | None], *, num_classes: int) -> float:
    """Mean over classes of F1; an invalid answer (None) is a miss of its class and an error of none."""
    return float(_f1_of_counts(_confusion(gold, predicted, num_classes)[None])[0].mean())


def f1_intervals(
    gold: Sequence[int], predicted: Sequence[int | None], *, num_classes: int, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Estimate, list[Estimate]]:
    """Macro F1 and the F1 of each class, by resampling the table of gold and predicted classes.

    Raises:
        ValueError: if there are no items.
    """
    if not gold:
        raise ValueError("there are no items to resample")
    counts = _confusion(gold, predicted, num_classes)
    drawn = np.random.default_rng(seed).multinomial(len(gold), counts.ravel() / len(gold), size=resamples)
    point, replicates = _f1_of_counts(counts[None])[0], _f1_of_counts(drawn.reshape(resamples, num_classes, num_classes + 1))
    classes = [Estimate(float(point[i]), *_percentiles(replicates[:, i]), len(gold)) for i in range(num_classes)]
    return Estimate(float(point.mean()), *_percentiles(replicates.mean(axis=1)), len(gold)), classes


def _confusion(gold: Sequence[int], predicted: Sequence[int | None], num_classes: int) -> NDArray[np.int64]:
    """(num_classes, num_classes + 1): gold classes in rows, predicted ones in columns, invalid answers in the last."""
    counts = np.zeros((num_classes, num_classes + 1), dtype=np.int64)
    for truth, answer in zip(gold, predicted, strict=True):
        counts[truth, num_classes if answer is None else answer] += 1
    return counts


def _f1_of_counts(counts: NDArray[np.int64]) -> Floats:
    """F1 of each class, (tables, classes), from tables of gold and predicted classes; 0 where a class is neither."""
    num_classes = counts.shape[1]
    hits = np.diagonal(counts[:, :, :num_classes], axis1=1, axis2=2)
    both = counts.sum(axis=2) + counts.sum(axis=1)[:, :num_classes]
    return np.divide(2 * hits, both, out=np.zeros(hits.shape), where=both > 0)


def majority_baseline(gold: Sequence[Hashable]) -> tuple[Hashable, float]:
    """The most frequent answer and the accuracy of always giving it; of equally frequent ones the first.

    Raises:
        ValueError: if there are no items.
    """
    if not gold:
        raise ValueError("a majority needs at least one item")
    label, count = Counter(gold).most_common(1)[0]
    return label, count / len(gold)


@dataclass(frozen=True)
class Difference:
    """How much higher the first of two runs scores on the same items.

    Attributes:
        p_value: of no difference, two-sided.
        wins, losses: items on which the first run scores higher, and lower.
    """

    value: float
    low: float
    high: float
    p_value: float
    wins: int
    losses: int
    n: int


def mcnemar_p_value(wins: int, losses: int) -> float:
    """Exact two-sided p-value that two runs are equally often right, from the items only one of them has right (McNemar 1947)."""
    from scipy.stats import binomtest

    return 1.0 if wins + losses == 0 else float(binomtest(wins, wins + losses, 0.5).pvalue)


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    denominators: ArrayLike | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    clusters: Sequence[Hashable] | None = None,
) -> Difference:
    """Difference of two runs' scores with its bootstrap interval, the same items drawn for both.

    The p-value is McNemar's exact one where all items are 0 or 1 and stand alone, else the bootstrap's: twice the smaller share of
    resamples on one side of 0, never below 1 / resamples.

    Args:
        first, second: of the same items in the same order.
        denominators: of both runs, for ratios such as bits per byte; None for means.

    Raises:
        ValueError: if the runs have different numbers of items, or none.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if len(a) != len(b):
        raise ValueError(f"paired runs must have the same items; found {len(a)} and {len(b)}")
    below = np.ones(len(a)) if denominators is None else np.asarray(denominators, dtype=float)
    sums = resampled_sums(np.column_stack([a - b, below]), resamples=resamples, seed=seed, clusters=clusters)
    replicates = sums[:, 0] / sums[:, 1]
    wins, losses = int((a > b).sum()), int((a < b).sum())
    if denominators is None and clusters is None and np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        p_value = mcnemar_p_value(wins, losses)
    else:
        one_side = min(int((replicates <= 0).sum()), int((replicates >= 0).sum()))
        p_value = min(1.0, max(2 * one_side, 1) / resamples)
    low, high = _percentiles(replicates)
    return Difference(float((a - b).sum() / below.sum()), low, high, p_value, wins, losses, len(a))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for being many (Holm 1979), in the order given; below 0.05 stays significant over the whole list."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def corpus_interval(statistics: ArrayLike, score: Callable[[Floats], Floats], *, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """A corpus score (BLEU, chrF) with the percentile interval of the bootstrap over sentences.

    Args:
        statistics: (num_sentences, num_counts), what the score adds up over sentences.
        score: (corpora, num_counts) of summed counts -> (corpora,)

    Raises:
        ValueError: if there are no sentences.
    """
    counts = np.asarray(statistics, dtype=float)
    low, high = _percentiles(score(resampled_sums(counts, resamples=resamples, seed=seed)))
    return Estimate(float(score(counts.sum(axis=0)[None])[0]), low, high, len(counts))


def _percentiles(replicates: Floats) -> tuple[float, float]:
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
