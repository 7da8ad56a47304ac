"""Intervals of scores from items: point values are lm-eval's and sacrebleu's own."""

import math

import numpy as np
import pytest
from lm_eval.api.registry import get_aggregation
from sacrebleu import corpus_bleu, corpus_chrf

from conversion.measuring.intervals import wilson_interval
from eval.protocols import scoring
from eval.protocols.translation import sd_over_runs
from eval.scoring.score_intervals import score_interval

REFERENCES = ["Mačka spi na peči.", "Zunaj dežuje že ves dan.", "Kruh je na mizi.", "Kupila je češnje in jabolka."]
OUTPUTS = ["Mačka spi na postelji.", "Zunaj sneži že ves dan.", "", "Kupila je češnje in jabolka na trgu."]


@pytest.mark.parametrize("outputs", [OUTPUTS, REFERENCES, ["", "", "", ""], ["da"] * 4, ["Mačka"] * 4])
@pytest.mark.parametrize(("name", "theirs"), [("chrf", corpus_chrf), ("bleu", corpus_bleu)])
def test_corpus_scores_are_sacrebleus(name, theirs, outputs):
    found = score_interval(list(zip(REFERENCES, outputs)), get_aggregation(name))
    assert found is not None
    assert found.value == pytest.approx(theirs(outputs, [REFERENCES]).score, abs=1e-9)
    assert found.low - 1e-9 <= found.value <= found.high + 1e-9
    assert found.n == 4


def test_corpus_scores_of_every_resample_are_sacrebleus():
    from eval.scoring.score_intervals import _bleu_counts, _chrf_counts, bleu_of_counts, chrf_of_counts

    rng = np.random.default_rng(0)
    pairs = list(zip(REFERENCES, OUTPUTS))
    for counts, ours, theirs in ((_chrf_counts(pairs), chrf_of_counts, corpus_chrf), (_bleu_counts(pairs), bleu_of_counts, corpus_bleu)):
        for _ in range(20):
            drawn = rng.integers(0, 4, 4)
            expected = theirs([OUTPUTS[i] for i in drawn], [[REFERENCES[i] for i in drawn]]).score
            assert ours(counts[drawn].sum(axis=0)[None])[0] == pytest.approx(expected, abs=1e-9)


def test_shares_means_and_valid_only_means():
    mean, nanmean = get_aggregation("mean"), get_aggregation("nanmean")
    assert score_interval([1.0, 0.0, 1.0], mean) == wilson_interval(2, 3)
    silent = score_interval([0.0, 0.0, 0.0], mean, out_of=100)
    assert silent.low == 0 and 50 < silent.high < 100, "three silent answers do not show that all are; and chrF is out of 100"
    graded = score_interval([10.0, 20.0, 60.0], mean)
    assert graded is not None and graded.value == 30 and graded.low < 30 < graded.high
    valid = score_interval([1.0, math.nan, 0.0, 1.0], nanmean)
    assert valid is not None and valid.value == pytest.approx(2 / 3) and (valid.n, valid.units) == (3, 3)
    assert score_interval([math.nan], nanmean) is None
    assert score_interval([(1.0, 2.0)], sd_over_runs) is None


def test_passages_are_one_unit():
    mean = get_aggregation("mean")
    values, passages = [1.0] * 30 + [0.0] * 30, [str(n // 10) for n in range(60)]
    alone, together = score_interval(values, mean), score_interval(values, mean, clusters=passages)
    assert alone is not None and together is not None
    assert together.high - together.low > 2 * (alone.high - alone.low) and (together.n, together.units) == (60, 6)
    assert score_interval(values, mean, clusters=list(map(str, range(60)))) == alone


def test_f1_and_questions():
    macro = score_interval([(0, 0, 2), (0, -1, 2), (1, 1, 2)], scoring.macro_f1)
    assert macro is not None and macro.value == pytest.approx((2 / 3 + 1) / 2)
    answers = score_interval([(2, 2, 2), (1, 2, 2), (0, 0, 2)], scoring.f1_over_answers)
    assert answers is not None and answers.value == pytest.approx(0.6)
    questions = score_interval([("a", 1.0), ("b", 1.0), ("a", 0.0), ("c", 1.0)], scoring.share_all_right)
    assert questions == wilson_interval(2, 3)
