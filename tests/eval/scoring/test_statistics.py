"""Intervals against the papers' tables, scipy, and what can be computed by hand."""

import math
import re

import numpy as np
import pytest

from conversion.measuring.intervals import counted_interval, quantile_bootstrap, ratio_interval, share_interval, t_interval, wilson_interval
from eval.scoring.statistics import class_f1, f1_bootstrap, f1_interval, macro_f1, majority_baseline


@pytest.mark.parametrize(
    ("right", "n", "printed"),
    [
        (17, 30, (0.57, 0.38, 0.75)),  # BoolQ
        (15, 30, (0.50, 0.31, 0.69)),
        (20, 30, (0.67, 0.49, 0.85)),
        (14, 30, (0.47, 0.28, 0.66)),
        (12, 28, (0.43, 0.23, 0.62)),  # RTE, 1 of 29 invalid
        (5, 33, (0.15, 0.02, 0.28)),  # exact match of MultiRC
        (61, 146, (0.42, 0.34, 0.50)),  # WSC
    ],
)
def test_t_interval_is_that_of_the_papers_tables(right, n, printed):
    found = t_interval([1] * right + [0] * (n - right))
    assert (round(found.value, 2), round(found.low, 2), round(found.high, 2)) == printed
    assert found.n == n


def plain_bootstrap(items, score):
    """Resampling as the paper's published framework (slobench_evaluation) does it, one draw after the other."""
    np.random.seed(42)
    found = sorted(score(items[np.random.choice(np.arange(len(items)), size=len(items), replace=True)]) for _ in range(1000))
    return found[25], found[975]


@pytest.mark.long
def test_the_gams_papers_bootstrap():
    """GaMS, Tables 4 to 7: intervals of F1 and SARI are by "quantile bootstrap"; against a plain loop with scikit-learn."""
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(3)
    gold = rng.integers(0, 3, 60)
    answers = np.column_stack([gold, np.where(rng.random(60) < 0.4, gold, rng.integers(0, 3, 60))])
    answers[answers[:, 1] == 2, 1] = 1  # a class that is never said, and rare in some resamples

    def macro(rows):
        return f1_score(rows[:, 0], rows[:, 1], average="macro", zero_division=0)

    found = f1_bootstrap(*answers.T.tolist(), num_classes=3)
    assert found.value == pytest.approx(macro(answers)) and (found.low, found.high) == pytest.approx(plain_bootstrap(answers, macro))
    few = np.array([(0, 0), (1, 1), (1, 0), (0, 0)])  # of two classes of three, in some resamples of one

    assert (one := f1_bootstrap(*few.T.tolist(), num_classes=3)).value == pytest.approx(macro(few))
    assert (one.low, one.high) == pytest.approx(plain_bootstrap(few, macro))
    for number in range(3):

        def of_class(rows, number=number):
            return f1_score(rows[:, 0], rows[:, 1], labels=[number], average=None, zero_division=0)[0]

        found = f1_bootstrap(*answers.T.tolist(), num_classes=3, of_class=number)
        assert (found.value, found.low, found.high) == pytest.approx((of_class(answers), *plain_bootstrap(answers, of_class)))
    scores = rng.normal(39, 8, 117)
    found = quantile_bootstrap(np.column_stack([scores, np.ones(117)]), lambda sums: sums[:, 0] / sums[:, 1])
    assert (found.value, found.low, found.high) == pytest.approx((scores.mean(), *plain_bootstrap(scores, np.mean)))


def test_wilson_interval():
    found = wilson_interval(17, 30)
    assert (round(found.low, 3), round(found.high, 3)) == (0.392, 0.726)
    assert (wilson_interval(0, 10).low, wilson_interval(10, 10).high) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"^a share needs at least one item and at most as many successes; found 0 of 0$"):
        wilson_interval(0, 0)


def test_a_mean_has_students_interval():
    from scipy.stats import t

    values = np.random.default_rng(5).gamma(2.0, size=12)
    low, high = t.interval(0.95, 11, loc=values.mean(), scale=values.std(ddof=1) / math.sqrt(12))
    found = ratio_interval(values)
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), low, high))
    assert (found.n, found.units) == (12, 12)
    assert ratio_interval(values, bounds=(1.9, 2.05)) == type(found)(found.value, 1.9, 2.05, 12, 12), "cut at what a score can be"


def test_a_ratio_goes_by_pairs_not_parts():
    bits, sizes = np.array([80.0, 8.0, 40.0, 4.0]), np.array([20.0, 2.0, 10.0, 1.0])  # four bits a byte, but for a little in one document
    bits[0] += 0.2
    found = ratio_interval(bits, sizes)
    assert found.low < found.value < found.high
    assert found.high - found.low < 0.12, "documents differ twentyfold in size, and hardly in bits per byte"


def test_units_that_do_not_vary_have_no_interval_of_width_zero():
    nothing = (-math.inf, math.inf)
    for values, sizes in (([80.0], [20.0]), ([80.0, 8.0], [20.0, 2.0]), ([0.1] * 7, [0.3] * 7)):
        found = ratio_interval(values, sizes)
        assert (found.low, found.high) == nothing, "one document, or all alike, say nothing of others"
        assert ratio_interval(values, sizes, bounds=(0, math.inf)).low == 0
    sixteen = share_interval([0.0] * 16, ["a"] * 4 + ["b"] * 4 + ["c"] * 4 + ["d"] * 4)
    assert (sixteen.value, sixteen.low, sixteen.n, sixteen.units) == (0.0, 0.0, 16, 4)
    assert sixteen.high == wilson_interval(0, 4).high > 0.4
    assert share_interval([1.0] * 16, ["a"] * 16).low == pytest.approx(wilson_interval(1, 1).low)
    half = share_interval([1.0, 0.0] * 8, ["a"] * 16)
    assert half.low < 0.06 and half.high > 0.94, "one passage"
    silent = ratio_interval([0.0, 0.0, 0.0], bounds=(0, 100))
    assert (silent.low, silent.high) == (0.0, pytest.approx(100 * wilson_interval(0, 3).high))
    for gold, predicted in (([0], [0]), ([0, 1, 0], [0, 1, 0]), ([0, 1, 1], [1, 0, 0])):
        found = f1_interval(gold, predicted, num_classes=2)
        assert found.low < found.high


def test_clusters_are_one_unit():
    """Ten passages of twenty questions all right or all wrong say as much as ten questions."""
    values = np.repeat([1.0, 0.0] * 5, 20)
    passages = np.repeat(np.arange(10), 20).tolist()
    alone, together = ratio_interval(values), ratio_interval(values, clusters=passages)
    assert together.high - together.low > 3 * (alone.high - alone.low)
    ten = ratio_interval(np.array([1.0, 0.0] * 5))
    assert (together.low, together.high) == pytest.approx((ten.low, ten.high))
    assert (together.n, together.units) == (200, 10)
    share = share_interval(values.tolist(), passages)
    assert share.high - share.low > 3 * (wilson_interval(100, 200).high - wilson_interval(100, 200).low)
    assert share_interval(values.tolist(), list(range(200))) == wilson_interval(100, 200), "groups of one are none"


def test_f1_against_scikit_learn():
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(2)
    gold, predicted = rng.integers(0, 3, 200).tolist(), rng.integers(0, 3, 200).tolist()
    assert macro_f1(gold, predicted, num_classes=3) == pytest.approx(f1_score(gold, predicted, average="macro"))
    assert class_f1(gold, predicted, num_classes=3) == pytest.approx(f1_score(gold, predicted, average=None).tolist())
    macro, second = (f1_interval(gold, predicted, num_classes=3, of_class=c) for c in (None, 1))
    assert second.value == pytest.approx(class_f1(gold, predicted, num_classes=3)[1])
    assert macro.low < macro.value < macro.high
    assert macro.high - macro.low < second.high - second.low
    # A class that is neither wanted nor said is none of the mean's, in scores, intervals and tables alike.
    two = ([0, 1, 1, 0], [0, 1, 0, 0])
    expected = pytest.approx(f1_score(*two, average="macro"))
    assert [macro_f1(*two, num_classes=3), f1_interval(*two, num_classes=3).value, f1_bootstrap(*two, num_classes=3).value] == [
        expected
    ] * 3
    # By hand: class 0 has one hit of two, one answer invalid: F1 = 2 / (2 + 1); class 1 has one hit, no error: 1.
    assert macro_f1([0, 0, 1], [0, None, 1], num_classes=2) == pytest.approx((2 / 3 + 1) / 2)


def test_majority():
    assert majority_baseline(["da", "ne", "ne"]) == ("ne", 2 / 3)
    with pytest.raises(ValueError, match=r"^a majority needs at least one item$"):
        majority_baseline([])


def test_a_score_of_counts_is_jackknifed():
    """By hand: without each sentence in turn the ratio is 6/8, 3/6 and 4/6."""
    counts = np.array([[1.0, 2.0], [3.0, 4.0], [2.0, 4.0]])  # matches, n-grams
    found = counted_interval(counts, lambda sums: sums[:, 0] / sums[:, 1])
    without = np.array([5 / 8, 3 / 6, 4 / 6])
    half = 4.302653 * math.sqrt(2 / 3 * ((without - without.mean()) ** 2).sum())
    assert (found.value, found.low, found.high) == pytest.approx((0.6, max(0.0, 0.6 - half), min(1.0, 0.6 + half)), abs=1e-6)
    values = np.random.default_rng(3).random(9)
    mean = counted_interval(np.column_stack([values, np.ones(9)]), lambda sums: sums[:, 0] / sums[:, 1])
    assert (mean.low, mean.high) == pytest.approx((ratio_interval(values).low, ratio_interval(values).high)), "of a mean it is t's interval"


def test_nothing_to_say_of_no_items():
    for call in (lambda: ratio_interval([]), lambda: f1_interval([], [], num_classes=2)):
        with pytest.raises(ValueError, match=r"^there are no items, so nothing can be said of a score$"):
            call()
    with pytest.raises(ValueError, match=re.escape("none of the 2 items counts, so the score is not defined")):
        ratio_interval([0, 0], [0, 0])
