"""Whether two runs differ: exact tests on the same items or documents, which hold their level for any number of them.

The question is always whether exchanging the two runs' answers to an item would change anything.  If not, every unit's difference (an item's,
a document's, that of a whole group) is as likely to have the other sign, which gives an exact test whatever the scores are like; n units
all of one sign have p = 2 / 2^n, so that fewer than six decide nothing at 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from conversion.measuring.intervals import LEVEL, normal_quantile, ratio_interval, ratio_p_value, t_quantile, unit_sums

LEAST_UNITS = 6  # the first n with 2 / 2^n < 0.05
_EXACT_UNITS = 13  # up to so many, all signs are tried
_DRAWS = 9_999
_CHUNK_CELLS = 4_000_000  # signs held at once: 32 MB
_TIE = 1e-9  # of the sum of all sizes: sums that are equal but for rounding


@dataclass(frozen=True)
class Difference:
    """How much higher the first of two runs scores on the same items.

    Attributes:
        low, high: -inf and inf where nothing is known.
        p_value: of no difference, two-sided.
        wins, losses: items on which the first run scores higher, and lower.
        n: items.
        units: how many of them are independent.
    """

    value: float
    low: float
    high: float
    p_value: float
    wins: int
    losses: int
    n: int
    units: int

    @property
    def can_decide(self) -> bool:
        """Whether so many units could be sure of anything, whatever their scores."""
        return self.units >= LEAST_UNITS


def mcnemar_p_value(wins: int, losses: int) -> float:
    """Exact two-sided p-value that two runs are equally often right, from the items only one of them has right (McNemar 1947)."""
    from scipy.stats import binomtest

    return 1.0 if wins + losses == 0 else float(binomtest(wins, wins + losses, 0.5).pvalue)


def sign_flip_p_value(differences: ArrayLike) -> float:
    """Exact two-sided p-value that units' differences are as likely to have the other sign (Fisher 1935): their sum under all signs.

    Of more than 13 units that are not 0, 9,999 random choices of signs from a fixed seed and the one that was found, which holds the level
    too.  `scipy.stats.permutation_test` gives the same p-values, and for 500 units takes 40 times as long.

    Args:
        differences: (units,)
    """
    found = np.asarray(differences, dtype=float)
    found = found[found != 0]  # their sign changes nothing
    if len(found) == 0:
        return 1.0
    reached = abs(found.sum()) - _TIE * np.abs(found).sum()
    if len(found) <= _EXACT_UNITS:
        codes = np.arange(2 ** len(found))[:, None] >> np.arange(len(found)) & 1
        return float((np.abs((2 * codes - 1) @ found) >= reached).mean())
    rng = np.random.default_rng(0)
    as_far, rows = 0, max(1, _CHUNK_CELLS // len(found))
    for start in range(0, _DRAWS, rows):
        drawn = rng.integers(0, 256, size=(min(rows, _DRAWS - start), -(-len(found) // 8)), dtype=np.uint8)
        signs = np.unpackbits(drawn, axis=1, count=len(found)).astype(np.float64)
        as_far += int((np.abs(2 * (signs @ found) - found.sum()) >= reached).sum())
    return (1 + as_far) / (1 + _DRAWS)


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    denominators: ArrayLike | None = None,
    *,
    clusters: Sequence[Hashable] | None = None,
    most: float = math.inf,
) -> Difference:
    """Difference of two runs' scores with its interval and the p-value of no difference.

    Right and wrong answers to items that stand alone have McNemar's exact p-value and the interval of Bonett and Price (2012); anything
    else the exact test of signs over units and t's interval over them; of a ratio the p-value is the larger of that and of t's.

    Args:
        first, second: (items,) of the same items in the same order.
        denominators: (items,) of both runs, for ratios such as bits per byte; None for means.
        clusters: items of one cluster are one unit; None if every item stands alone.
        most: the highest score of an item, if its least is 0.

    Raises:
        ValueError: if the runs have different numbers of items, or none.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if len(a) != len(b):
        raise ValueError(f"paired runs must have the same items; found {len(a)} and {len(b)}")
    wins, losses = int((a > b).sum()), int((a < b).sum())
    sums = unit_sums(a - b, clusters)[:, 0]
    if denominators is None and len(sums) == len(a) and np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        value, p_value = (wins - losses) / len(a), mcnemar_p_value(wins, losses)
        low, high = _interval_of_pairs(wins, losses, len(a))
    else:
        found = ratio_interval(a - b, denominators, clusters=clusters)
        value, p_value = found.value, sign_flip_p_value(sums)
        if denominators is not None:  # signs are exchangeable where runs are alike on every unit, not where a ratio of sums is alike
            p_value = max(p_value, ratio_p_value(sums, unit_sums(denominators, clusters)[:, 0]))
        low, high = max(-most, found.low), min(most, found.high)
        if not math.isfinite(found.high - found.low) and math.isfinite(most):
            low, high = _interval_without_variation(value, len(sums), most)
    return Difference(value, low, high, p_value, wins, losses, len(a), len(sums))


def with_seeds(found: Difference, by_seed: Sequence[float]) -> Difference:
    """The same difference where both runs were trained with several seeds, which vary it as items or languages do: both are random and crossed.

    The two parts of its variance add up (of units and of seeds; Owen 2007, The pigeonhole bootstrap, section 4), with the degrees of freedom of
    Satterthwaite (1946).  Two or three seeds that happen to agree would make that too sure (levels of 0.08 to 0.12 by simulation), so the
    p-value is the largest of that t test's, of the one over seeds and of the test over units, and the interval the widest.  One seed does not say
    how seeds vary.

    Args:
        found: over units, of means over the seeds.
        by_seed: (seeds,) the difference with each seed.
    """
    from scipy.stats import t

    if len(by_seed) < 2:
        return replace(found, low=-math.inf, high=math.inf, p_value=1.0)
    if found.units < 2 or not math.isfinite(found.high - found.low):
        return found
    parts = ((found.high - found.low) / 2 / t_quantile(found.units)) ** 2, float(np.var(by_seed, ddof=1)) / len(by_seed)
    if sum(parts) == 0:
        return found
    together = sum(parts) ** 2 / sum(part**2 / (units - 1) for part, units in zip(parts, (found.units, len(by_seed))))
    errors = [(math.sqrt(sum(parts)), together), (math.sqrt(parts[1]), len(by_seed) - 1)]  # standard error, degrees of freedom
    half = max(float(t.ppf(0.5 + LEVEL / 2, freedom)) * error for error, freedom in errors)
    p_value = max(2 * float(t.sf(abs(found.value) / error, freedom)) for error, freedom in errors if error > 0)
    return replace(found, low=found.value - half, high=found.value + half, p_value=max(found.p_value, p_value))


def _interval_of_pairs(wins: int, losses: int, n: int) -> tuple[float, float]:
    """Of a difference of two shares of the same items: Wald's with one win and one loss added (Bonett and Price 2012)."""
    win, loss = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
    half = normal_quantile() * math.sqrt((win + loss - (win - loss) ** 2) / (n + 2))
    return max(-1.0, win - loss - half), min(1.0, win - loss + half)


def _interval_without_variation(value: float, units: int, most: float) -> tuple[float, float]:
    """Of units that all differ alike: so many units do not exclude that a share of others differs by as much as can be."""
    square = normal_quantile() ** 2
    share = square / (units + square)  # Wilson's highest of 0 units
    return value - share * (value + most), value + share * (most - value)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for being many (Holm 1979), in the order given; below 0.05 stays significant over the whole list."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
