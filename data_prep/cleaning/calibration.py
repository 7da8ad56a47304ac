"""How the answer of a classifier becomes a probability: by a curve of two numbers (Platt 1999), or by any that rises (isotonic regression).

Two numbers are learned from few texts, but the curve may be of another form; steps that rise fit any form and need more texts (Zadrozny and Elkan 2002;
Niculescu-Mizil and Caruana 2005, section 4: from about a thousand on).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

AUTO, PLATT, ISOTONIC = CALIBRATIONS = ("auto", "platt", "isotonic")
ISOTONIC_LEAST = 1000  # texts to calibrate with, below which steps are not chosen
_FOLDS = 5


@dataclass(frozen=True)
class Calibration:
    """A rising curve from margins to probabilities; without knots a logistic one.

    Attributes:
        slope, offset: of the logistic curve.
        knots: (2, num_knots) margins and their probabilities, between which lines are drawn and beyond which it is level.
    """

    slope: float = 1.0
    offset: float = 0.0
    knots: NDArray[np.float64] = field(default_factory=lambda: np.zeros((2, 0)))

    @property
    def method(self) -> str:
        """Which of both."""
        return ISOTONIC if self.knots.size else PLATT

    def probabilities(self, margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """(num_texts,) for margins (num_texts,)."""
        if self.knots.size:
            return np.interp(margins, *self.knots)
        return 1 / (1 + np.exp(-(self.slope * margins + self.offset)))


def fit_calibration(margins: NDArray[np.float64], is_good: NDArray[np.bool_], method: str = AUTO) -> tuple[Calibration, dict[str, Any]]:
    """The curve over some texts, on which the classifier was not fitted; both sets weigh the same.

    Args:
        margins, is_good: (num_texts,)
        method: `auto` takes isotonic regression if there are `ISOTONIC_LEAST` texts and its Brier score is the lower one on fifths of the texts that
            the curve was not fitted on.

    Returns:
        the curve, and which it is, of how many texts, and with `auto` the Brier scores that decided.
    """
    facts: dict[str, Any] = {"asked": method, "texts": len(margins)}
    if method == AUTO:
        method = PLATT
        if len(margins) >= ISOTONIC_LEAST:
            facts["brier_on_fifths"] = {name: round(_brier_on_fifths(margins, is_good, name), 6) for name in (PLATT, ISOTONIC)}
            method = _lowest(facts["brier_on_fifths"])
    return _FITS[method](margins, is_good), {"method": method, **facts}


def balanced(is_good: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(num_texts,) weights with which both sets count for a half."""
    return np.where(is_good, 0.5 / is_good.sum(), 0.5 / (~is_good).sum())


def brier(probabilities: NDArray[np.float64], is_good: NDArray[np.bool_]) -> float:
    """Mean square of what is missing to the truth, both sets of the same weight; both arrays are (num_texts,)."""
    return float((balanced(is_good) * (probabilities - is_good) ** 2).sum())


def _lowest(scores: Mapping[str, float]) -> str:
    return min(scores, key=lambda name: scores[name])


def _brier_on_fifths(margins: NDArray[np.float64], is_good: NDArray[np.bool_], method: str) -> float:
    """Each fifth by the curve over the others; each set is dealt out by itself, so that every fifth has of both."""
    folds = np.empty(len(margins), np.int64)
    for side in (is_good, ~is_good):
        folds[side] = np.arange(side.sum()) % _FOLDS
    found = np.empty(len(margins))
    for fold in range(_FOLDS):
        curve = _FITS[method](margins[folds != fold], is_good[folds != fold])
        found[folds == fold] = curve.probabilities(margins[folds == fold])
    return brier(found, is_good)


def _platt(margins: NDArray[np.float64], is_good: NDArray[np.bool_]) -> Calibration:
    from sklearn.linear_model import LogisticRegression

    found = LogisticRegression(C=1e3, class_weight="balanced").fit(margins[:, None], is_good)
    return Calibration(float(found.coef_[0, 0]), float(found.intercept_[0]))


def _isotonic(margins: NDArray[np.float64], is_good: NDArray[np.bool_]) -> Calibration:
    from sklearn.isotonic import IsotonicRegression

    # No text is certain: a probability of 0 is a weight of 0 in a mixture, in which the text would never be seen.
    least = 0.5 / len(margins)
    found = IsotonicRegression(y_min=least, y_max=1 - least).fit(margins, is_good, sample_weight=balanced(is_good))
    return Calibration(knots=np.stack([found.X_thresholds_, found.y_thresholds_]).astype(np.float64))


_FITS = {PLATT: _platt, ISOTONIC: _isotonic}
