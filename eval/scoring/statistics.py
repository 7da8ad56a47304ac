"""F1 of classes, and what no skill at all would reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from conversion.measuring.intervals import Estimate, Floats, counted_interval, quantile_bootstrap

Label = TypeVar("Label", bound=Hashable)


def macro_f1(gold: Sequence[int], predicted: Sequence[int | None], *, num_classes: int) -> float:
    """Mean of F1 over the classes that occur; an invalid answer (None) is a miss of its class and an error of none."""
    return float(mean_f1_of_tables(confusions(gold, predicted, num_classes=num_classes).sum(axis=0)[None], num_classes)[0])


def class_f1(gold: Sequence[int], predicted: Sequence[int | None], *, num_classes: int) -> list[float]:
    """F1 of each class; 0 where a class is neither."""
    return [float(f1) for f1 in f1_of_tables(confusions(gold, predicted, num_classes=num_classes).sum(axis=0)[None], num_classes)[0]]


def f1_interval(
    gold: Sequence[int],
    predicted: Sequence[int | None],
    *,
    num_classes: int,
    of_class: int | None = None,
    clusters: Sequence[Hashable] | None = None,
) -> Estimate:
    """F1 of one class, or with None the mean over those that occur.

    Raises:
        ValueError: if there are no items.
    """
    return counted_interval(confusions(gold, predicted, num_classes=num_classes), _score(num_classes, of_class), clusters=clusters)


def f1_bootstrap(gold: Sequence[int], predicted: Sequence[int], *, num_classes: int, of_class: int | None = None) -> Estimate:
    """The same with the GaMS paper's bootstrap.

    Raises:
        ValueError: if there are no items.
    """
    return quantile_bootstrap(confusions(gold, predicted, num_classes=num_classes), _score(num_classes, of_class))


def _score(num_classes: int, of_class: int | None) -> Callable[[Floats], Floats]:
    if of_class is None:
        return lambda counts: mean_f1_of_tables(counts, num_classes)
    return lambda counts: f1_of_tables(counts, num_classes)[:, of_class]


def confusions(gold: Sequence[int], predicted: Sequence[int | None], *, num_classes: int) -> Floats:
    """(items, classes * (classes + 1)), one 1 in each row: gold classes, then predicted ones, an invalid answer the last of them."""
    counts = np.zeros((len(gold), num_classes, num_classes + 1))
    for item, (truth, answer) in enumerate(zip(gold, predicted, strict=True)):
        counts[item, truth, num_classes if answer is None else answer] = 1
    return counts.reshape(len(gold), num_classes * (num_classes + 1))


def f1_of_tables(counts: Floats, num_classes: int) -> Floats:
    """F1 of each class, (tables, classes), from summed `confusions` (tables, classes * (classes + 1)); 0 where a class is neither."""
    tables = counts.reshape(len(counts), num_classes, num_classes + 1)
    hits = np.diagonal(tables[:, :, :num_classes], axis1=1, axis2=2)
    both = tables.sum(axis=2) + tables.sum(axis=1)[:, :num_classes]
    return np.divide(2 * hits, both, out=np.zeros(hits.shape), where=both > 0)


def mean_f1_of_tables(counts: Floats, num_classes: int) -> Floats:
    """Macro F1, (tables,): over the classes that are wanted or found, as scikit-learn has it; a class that is neither is none of the test's."""
    by_class = f1_of_tables(counts, num_classes)
    tables = counts.reshape(len(counts), num_classes, num_classes + 1)
    occurs = tables.sum(axis=2) + tables.sum(axis=1)[:, :num_classes] > 0
    mean: Floats = by_class.sum(axis=1) / np.maximum(occurs.sum(axis=1), 1)
    return mean


def majority_baseline(gold: Sequence[Label]) -> tuple[Label, float]:
    """The most frequent answer and the accuracy of always giving it; of equally frequent ones the first.

    Raises:
        ValueError: if there are no items.
    """
    if not gold:
        raise ValueError("a majority needs at least one item")
    label, count = Counter(gold).most_common(1)[0]
    return label, count / len(gold)
