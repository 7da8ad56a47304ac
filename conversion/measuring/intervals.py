"""Confidence intervals of 95 % that hold for few items.

A score is a function of sums over items (a mean; bits over bytes; F1; BLEU), and items of one passage or story hang together, so what is
counted is units: items that stand alone, or whole groups.  Shares have Wilson's interval; everything else Student's t over the units,
which is exact for a mean of normal units at every number of them, where resampling them is far too sure of few.  No interval is ever of
width zero: where the units do not vary, or there is only one, it says what so many units can exclude, and of a score without bounds
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
FEW_UNITS = 30  # below so many, an interval is told with a warning
_BOOTSTRAP_SAMPLES, _BOOTSTRAP_SEED = 1_000, 42
_NO_VARIATION = 1e-12  # of the sum's own size: differences between units that are rounding alone

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A score with its 95 % interval.

    Attributes:
        low, high: -inf or inf where nothing is known: of one unit whose score has no bounds.
        n: items that count.
        units: how many of them are independent: items, or groups of items.
    """

    value: float
    low: float
    high: float
    n: int
    units: int

    @property
    def is_known(self) -> bool:
        """Whether both ends are numbers."""
        return math.isfinite(self.high - self.low)

    def figures(self) -> dict[str, Any]:
        """For JSON: an interval that is not known has no ends."""
        return {**asdict(self), **({} if self.is_known else {"low": None, "high": None})}


def wilson_interval(successes: int, n: int) -> Estimate:
    """A share with Wilson's score interval (Wilson 1927), which stays within 0 and 1 and holds its level for few items.

    Raises:
        ValueError: if there are no items, or more successes than items.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"a share needs at least one item and at most as many successes; found {successes} of {n}")
    return Estimate(successes / n, *_wilson(successes / n, n, normal_quantile()), n, n)


def normal_quantile() -> float:
    """Of both sides' 95 %: 1.96."""
    from scipy.stats import norm

    return float(norm.ppf(0.5 + LEVEL / 2))


def t_quantile(units: float) -> float:
    """Of both sides' 95 %, for the mean of so many units, perhaps an effective number of them."""
    from scipy.stats import t

    return float(t.ppf(0.5 + LEVEL / 2, units - 1))


def _wilson(share: float, n: float, quantile: float) -> tuple[float, float]:
    """Both ends, for a number of items that need not be whole."""
    centre = (share + quantile**2 / (2 * n)) / (1 + quantile**2 / n)
    half = quantile / (1 + quantile**2 / n) * math.sqrt(share * (1 - share) / n + quantile**2 / (4 * n * n))
    # Rounding would leave the ends a last bit away from 0 and 1.
    return (0.0 if share == 0 else centre - half), (1.0 if share == 1 else centre + half)


def t_interval(values: ArrayLike) -> Estimate:
    """The mean of (items,) with the interval of Student's t over its standard error: what the GaMS paper prints, not clipped, as there.

    Raises:
        ValueError: if there are fewer than two items.
    """
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        raise ValueError(f"the t interval needs at least 2 items; found {len(array)}")
    half = t_quantile(len(array)) * float(array.std(ddof=1)) / math.sqrt(len(array))
    mean = float(array.mean())
    return Estimate(mean, mean - half, mean + half, len(array), len(array))


def quantile_bootstrap(counts: ArrayLike, score: Callable[[Floats], Floats]) -> Estimate:
    """A score of summed counts with the quantiles of 1,000 resamples of its items: what the GaMS paper prints of F1 and SARI.

    Draws, seed and the places of both ends are those of its published framework (slobench_evaluation), so that equal answers have
    equal intervals.  Of few items it is far too sure; everything that is not such a table has `counted_interval`.

    Args:
        counts: (items, num_counts), what the score adds up over items.
        score: (corpora, num_counts) of summed counts -> (corpora,)

    Raises:
        ValueError: if there are no items.
    """
    sums = unit_sums(counts)
    items = len(sums)
    drawn = np.random.RandomState(_BOOTSTRAP_SEED).randint(0, items, size=(_BOOTSTRAP_SAMPLES, items))
    offsets = items * np.arange(_BOOTSTRAP_SAMPLES)[:, None]
    times = np.bincount((drawn + offsets).ravel(), minlength=_BOOTSTRAP_SAMPLES * items).reshape(_BOOTSTRAP_SAMPLES, items)
    scores = np.sort(score(times @ sums))
    low, high = math.floor(_BOOTSTRAP_SAMPLES * 0.025), math.ceil(_BOOTSTRAP_SAMPLES * 0.975)
    return Estimate(float(score(sums.sum(axis=0)[None])[0]), float(scores[low]), float(scores[high]), items, items)


def unit_sums(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> Floats:
    """Columns summed over the items of each unit.

    Args:
        values: (items,) or (items, columns)
        clusters: items of one cluster are one unit (questions of one passage); None if every item stands alone.

    Returns:
        (units, columns)

    Raises:
        ValueError: if there are no items.
    """
    array = np.asarray(values, dtype=float)
    if len(array) == 0:
        raise ValueError("there are no items, so nothing can be said of a score")
    array = array.reshape(len(array), -1)
    if clusters is None:
        return array
    codes = {cluster: code for code, cluster in enumerate(dict.fromkeys(clusters))}
    grouped = np.zeros((len(codes), array.shape[1]))
    np.add.at(grouped, [codes[cluster] for cluster in clusters], array)
    return grouped


def share_interval(right: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Estimate:
    """A share of items that are 0 or 1.

    In groups it is Wilson's interval of as many items as vary as much by themselves as the groups do, with t's quantile for the number
    of groups (after Korn and Graubard 1998); of groups that do not vary, each counts as one item.

    Raises:
        ValueError: if there are no items.
    """
    sums = unit_sums(np.column_stack([right, np.ones(len(right))]), clusters)
    units, n = len(sums), len(right)
    share = float(sums[:, 0].sum() / n)
    if units == n:
        return wilson_interval(round(share * n), n)
    variance = _ratio_variance(sums[:, 0], sums[:, 1])
    if units == 1 or variance == 0:
        return Estimate(share, *_wilson(share, units, normal_quantile()), n, units)
    effective = min(float(n), share * (1 - share) / variance)
    return Estimate(share, *_wilson(share, effective, t_quantile(units)), n, units)


def _ratio_variance(above: Floats, below: Floats) -> float:
    """Variance of a ratio of sums, by its linear part over the units; 0 for one unit, or where they do not vary beyond rounding."""
    units, total = len(above), below.sum()
    residuals = above - above.sum() / total * below
    if units < 2 or np.abs(residuals).max() <= _NO_VARIATION * max(np.abs(above).max(), np.finfo(float).tiny):
        return 0.0
    return float(units / (units - 1) * (residuals**2).sum() / total**2)


def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike | None = None,
    *,
    clusters: Sequence[Hashable] | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """Sum of numerators over sum of denominators, with t's interval over the units that have a denominator.

    The standard error is the jackknife's, in which a unit weighs by what is left without it, and the degrees of freedom are one less than the
    effective number of units (Kish 1965): of documents of which a few have most of the bytes, nearly only these.  Where the ratio itself goes
    with the denominator the interval stays too narrow, see `ratio_goes_with_size`.

    Args:
        numerators, denominators: (items,); no denominators for a mean.
        bounds: least and highest value of the score.

    Raises:
        ValueError: if there are no items, or all denominators are 0.
    """
    above = np.asarray(numerators, dtype=float)
    below = np.ones(len(above)) if denominators is None else np.asarray(denominators, dtype=float)
    if len(above) and not below.any():
        raise ValueError(f"none of the {len(above)} items counts, so the score is not defined")
    sums = unit_sums(np.column_stack([above, below]), clusters)
    sums = sums[sums[:, 1] > 0]
    value = float(sums[:, 0].sum() / sums[:, 1].sum())
    spread = _jackknife_error(sums[:, 0], sums[:, 1])
    ends = _around(value, spread, len(sums), bounds, effective=effective_units(sums[:, 1]))
    return Estimate(value, *ends, int((below > 0).sum()), len(sums))


def ratio_p_value(numerators: ArrayLike, denominators: ArrayLike) -> float:
    """Two-sided p-value that the ratio of the sums of units is 0, of the t test that belongs to `ratio_interval`; 1 where they do not vary.

    Args:
        numerators, denominators: (units,), the latter above 0.
    """
    from scipy.stats import t

    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    error = _jackknife_error(above, below)
    if error == 0:
        return 1.0
    return 2 * float(t.sf(abs(above.sum() / below.sum()) / error, effective_units(below) - 1))


def effective_units(weights: ArrayLike) -> float:
    """How many units of one weight would say as much as these, (units,), do (Kish 1965)."""
    found = np.asarray(weights, dtype=float)
    return float(found.sum() ** 2 / (found**2).sum())


def ratio_goes_with_size(numerators: ArrayLike, denominators: ArrayLike) -> bool:
    """Whether the ratio of a unit surely goes with its size, (units,) each, where sizes are very unlike: then intervals are too narrow.

    What is sure was found by simulation.
    """
    from scipy.stats import spearmanr

    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if len(below) < 10 or effective_units(below) > len(below) / 2:
        return False
    return bool(spearmanr(above / below, below).pvalue < 0.01)


def _jackknife_error(above: Floats, below: Floats) -> float:
    """Standard error of a ratio of sums by leaving out each unit in turn; 0 for one unit, or where they do not vary beyond rounding."""
    units, total = len(above), below.sum()
    residuals = above - above.sum() / total * below
    if units < 2 or np.abs(residuals).max() <= _NO_VARIATION * max(np.abs(above).max(), np.finfo(float).tiny):
        return 0.0
    without = np.maximum(total - below, np.finfo(float).tiny)
    return math.sqrt((units - 1) / units * float(((residuals / without) ** 2).sum()))


def _around(value: float, spread: float, units: int, bounds: tuple[float, float], *, effective: float | None = None) -> tuple[float, float]:
    """The interval of t around a value of so many units, whose standard error is `spread`, within the bounds of the score.

    Args:
        effective: number of units that t's degrees of freedom go by; all by default.
    """
    least, most = bounds
    if units > 1 and spread > 0:
        half = t_quantile(units if effective is None else effective) * spread
        return max(least, value - half), min(most, value + half)
    # The units say nothing of how they vary; a score between bounds varies at most as a share of the way between them.
    if not math.isfinite(most - least):
        return least, most
    low, high = _wilson((value - least) / (most - least), units, normal_quantile())
    return least + low * (most - least), least + high * (most - least)


def counted_interval(
    counts: ArrayLike, score: Callable[[Floats], Floats], *, clusters: Sequence[Hashable] | None = None, most: float = 1.0
) -> Estimate:
    """A score of summed counts (F1, BLEU, chrF) with t's interval over the jackknife: the score without each unit in turn (Tukey 1958).

    Args:
        counts: (items, num_counts), what the score adds up over items.
        score: (corpora, num_counts) of summed counts -> (corpora,)
        most: the highest score; the least is 0.

    Raises:
        ValueError: if there are no items.
    """
    sums = unit_sums(counts, clusters)
    units, total = len(sums), sums.sum(axis=0)
    value = float(score(total[None])[0])
    spread = 0.0
    if units > 1:
        without = score(total - sums)
        spread = math.sqrt((units - 1) / units * float(((without - without.mean()) ** 2).sum()))
    if spread <= _NO_VARIATION * most:
        spread = 0.0
    return Estimate(value, *_around(value, spread, units, (0.0, most)), len(np.asarray(counts)), units)
