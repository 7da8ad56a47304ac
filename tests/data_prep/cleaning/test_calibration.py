"""Probabilities from a classifier's answer: which curve is chosen, and what it is worth on texts that it has not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from data_prep.cleaning.calibration import ISOTONIC_LEAST, Calibration, brier, fit_calibration
from data_prep.cleaning.quality_fit import calibration
from data_prep.cleaning.quality_models import Classifier, load_model


def _drawn(number: int, seed: int, *, bent: bool) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Margins, and truth of which the probability is a logistic curve of them, or one with a broad step that is none."""
    random = np.random.default_rng(seed)
    margins = random.normal(0, 3, number)
    probability = np.where(margins < -2, 0.02, np.where(margins < 2, 0.35, 0.9)) if bent else 1 / (1 + np.exp(-margins))
    return margins, random.random(number) < probability


def test_steps_are_chosen_where_the_curve_is_none_and_are_better_on_other_texts() -> None:
    margins, is_good = _drawn(3000, 0, bent=True)
    chosen, facts = fit_calibration(margins, is_good)
    assert (facts["method"], facts["asked"], facts["texts"], chosen.method) == ("isotonic", "auto", 3000, "isotonic")
    assert facts["brier_on_fifths"]["isotonic"] < facts["brier_on_fifths"]["platt"]
    others, truth = _drawn(4000, 1, bent=True)
    errors = {
        name: calibration(fit_calibration(margins, is_good, name)[0].probabilities(others), truth)["calibration_error"]
        for name in ("platt", "isotonic")
    }
    assert errors["isotonic"] < 0.04 < 0.06 < errors["platt"], errors


def test_platt_is_kept_where_it_is_the_better_or_texts_are_few() -> None:
    assert fit_calibration(*_drawn(3000, 2, bent=False))[1]["method"] == "platt"
    few, facts = fit_calibration(*_drawn(ISOTONIC_LEAST - 1, 0, bent=True))
    assert few.method == facts["method"] == "platt" and "brier_on_fifths" not in facts
    assert fit_calibration(*_drawn(100, 0, bent=True), "isotonic")[0].method == "isotonic", "who asks for it gets it"


def test_steps_rise_and_no_text_is_certain() -> None:
    margins, is_good = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0]), np.array([False, True, False, False, True, True])
    curve, _ = fit_calibration(margins, is_good, "isotonic")
    # One good text for two that are none, in the middle: with as many of both sets a third, and half a text less than certain at the ends.
    assert curve.probabilities(margins) == pytest.approx([0.5 / 6, 1 / 3, 1 / 3, 1 / 3, 1 - 0.5 / 6, 1 - 0.5 / 6])
    assert curve.probabilities(np.array([-9.0, 0.5, 9.0])) == pytest.approx([0.5 / 6, (1 / 3 + 1 - 0.5 / 6) / 2, 1 - 0.5 / 6])
    assert Calibration().probabilities(np.zeros(1)) == 0.5 and Calibration(2.0, 1.0).probabilities(np.array([-0.5])) == 0.5
    assert brier(np.array([0.5, 1.0, 0.0]), np.array([True, True, False])) == pytest.approx((0.25 + 0) / 4)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_a_model_is_read_as_it_was_written(method: str, tmp_path: Path) -> None:
    curve, _ = fit_calibration(*_drawn(300, 3, bent=True), method)
    model = Classifier(np.random.default_rng(0).normal(0, 10, 1 << 18).astype(np.float32), 0.5, curve)
    model.save(tmp_path / "model.npz")
    texts = ["Prva poved je tu.", "Druga je tam, tretje ni.", ""]
    read = load_model(tmp_path)
    assert isinstance(read, Classifier) and read.calibration.method == method
    assert read.scores(texts).tolist() == model.scores(texts).tolist() and len(set(model.scores(texts))) == 3
