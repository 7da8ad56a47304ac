"""Intervals and tests against the papers' tables, scipy, and what can be computed by hand."""

import math
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.statistics import (
    accuracy,
    corpus_interval,
    f1_intervals,
    holm,
    macro_f1,
    majority_baseline,
    mcnemar_p_value,
    paired_difference,
    ratio_interval,
    resampled_sums,
    t_interval,
    wilson_interval,
)


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


def test_wilson_interval():
    found = wilson_interval(17, 30)
    assert (round(found.low, 3), round(found.high, 3)) == (0.392, 0.726)
    assert (wilson_interval(0, 10).low, wilson_interval(10, 10).high) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"^a share needs at least one item and at most as many successes; found 0 of 0$"):
        wilson_interval(0, 0)


def test_bootstrap_of_a_mean_against_scipy():
    from scipy.stats import bootstrap

    values = np.random.default_rng(5).gamma(2.0, size=80)
    theirs = bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", random_state=7).confidence_interval
    ours = ratio_interval(values)
    spread = theirs.high - theirs.low
    # Two seeds of the same bootstrap differ by about 2 % of the interval's width at 10,000 resamples.
    assert ours.low == pytest.approx(theirs.low, abs=0.05 * spread)
    assert ours.high == pytest.approx(theirs.high, abs=0.05 * spread)
    assert ours.value == pytest.approx(values.mean())
    assert ratio_interval(values) == ours, "the seed alone decides"


def test_a_ratio_resamples_pairs_not_parts():
    bits, sizes = np.array([80.0, 8.0, 40.0, 4.0]), np.array([20.0, 2.0, 10.0, 1.0])  # four bits a byte in every document
    found = ratio_interval(bits, sizes)
    assert (found.value, found.low, found.high) == pytest.approx((4, 4, 4))


def test_valid_only_accuracy_carries_how_many_are_valid():
    right, valid = [True] * 9 + [False] * 21, [True] * 15 + [False] * 15
    found = accuracy(right, valid)
    assert (found.strict.value, found.invalid.value) == (0.3, 0.5)
    assert found.valid_only is not None
    assert found.valid_only.value == 0.6
    assert found.valid_only.low < 0.40 < 0.80 < found.valid_only.high + 0.05
    assert accuracy([False] * 3, [False] * 3).valid_only is None
    with pytest.raises(ValueError, match=r"^an answer is marked as right but not as valid$"):
        accuracy([True], [False])


def test_clusters_are_drawn_whole():
    """Ten passages of twenty questions all right or all wrong say as much as ten questions."""
    values = np.repeat([1.0, 0.0] * 5, 20)
    passages = np.repeat(np.arange(10), 20).tolist()
    alone, together = ratio_interval(values), ratio_interval(values, clusters=passages)
    assert together.high - together.low > 3 * (alone.high - alone.low)
    ten = ratio_interval(np.array([1.0, 0.0] * 5))
    assert (together.low, together.high) == (ten.low, ten.high)


def test_f1_against_scikit_learn():
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(2)
    gold, predicted = rng.integers(0, 3, 200).tolist(), rng.integers(0, 3, 200).tolist()
    assert macro_f1(gold, predicted, num_classes=3) == pytest.approx(f1_score(gold, predicted, average="macro"))
    macro, classes = f1_intervals(gold, predicted, num_classes=3)
    assert [c.value for c in classes] == pytest.approx(f1_score(gold, predicted, average=None).tolist())
    assert macro.low < macro.value < macro.high
    # By hand: class 0 has one hit of two, one answer invalid: F1 = 2 / (2 + 1); class 1 has one hit, no error: 1.
    assert macro_f1([0, 0, 1], [0, None, 1], num_classes=2) == pytest.approx((2 / 3 + 1) / 2)


def test_mcnemar_by_hand():
    assert mcnemar_p_value(0, 0) == 1.0
    assert mcnemar_p_value(5, 0) == pytest.approx(2 / 2**5)
    assert mcnemar_p_value(1, 7) == pytest.approx(2 * (1 + 8) / 2**8)
    first, second = [1] * 8 + [0] * 12, [0] * 7 + [1] + [0] * 12
    found = paired_difference(first, second)
    assert (found.wins, found.losses, found.value) == (7, 0, 7 / 20)
    assert found.p_value == pytest.approx(2 / 2**7)


def test_a_paired_difference_is_surer_than_two_intervals():
    rng = np.random.default_rng(0)
    hardness = rng.normal(size=200)
    first, second = hardness + 0.1 + rng.normal(scale=0.05, size=200), hardness
    found = paired_difference(first, second)
    assert 0.08 < found.low < found.value < found.high < 0.12
    assert found.p_value == pytest.approx(1 / 10_000)
    back = paired_difference(second, first)
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low))
    assert paired_difference(first, first).p_value == 1.0
    with pytest.raises(ValueError, match=r"^paired runs must have the same items; found 2 and 3$"):
        paired_difference([1, 2], [1, 2, 3])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.6, 0.9]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_keeps_the_order_and_never_lowers(p_values):
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted))
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert all(adjusted[i] <= adjusted[j] for i, j in zip(order, order[1:]))


def test_majority():
    assert majority_baseline(["da", "ne", "ne"]) == ("ne", 2 / 3)
    with pytest.raises(ValueError, match=r"^a majority needs at least one item$"):
        majority_baseline([])


def test_corpus_score_of_counts():
    counts = np.array([[1.0, 2.0], [3.0, 4.0], [2.0, 4.0]])  # matches, n-grams
    found = corpus_interval(counts, lambda sums: sums[:, 0] / sums[:, 1])
    assert found.value == 0.6
    assert 0.5 <= found.low < 0.6 < found.high <= 0.75


def test_nothing_to_resample():
    for call in (lambda: ratio_interval([]), lambda: f1_intervals([], [], num_classes=2), lambda: resampled_sums(np.zeros((0, 1)))):
        with pytest.raises(ValueError, match=r"^there are no items to resample$"):
            call()
    with pytest.raises(ValueError, match=re.escape("none of the 2 items counts, so the score is not defined")):
        ratio_interval([0, 0], [0, 0])


def test_resampling_is_the_same_in_one_chunk_and_in_many(monkeypatch):
    values = np.random.default_rng(1).normal(size=(50, 3))
    whole = resampled_sums(values, resamples=100)
    monkeypatch.setattr("eval.statistics._CHUNK_CELLS", 50 * 7)
    assert resampled_sums(values, resamples=100) == pytest.approx(whole, rel=1e-9)  # matrix products of other shapes round otherwise
    assert whole.mean(axis=0) == pytest.approx(values.sum(axis=0), abs=4 * math.sqrt(50 / 100))


def test_ten_runs_of_twenty_tasks_are_fast():
    """The budget is 5 s on a quiet core; 1.2 s are what it takes."""
    rng = np.random.default_rng(0)
    start = time.process_time()
    for task in range(20):
        resampled_sums(rng.random((500, 10)), seed=task)
    assert time.process_time() - start < 5
