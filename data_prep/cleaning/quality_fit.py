"""A model of good text fitted, and measured on texts that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep.cleaning.calibration import AUTO, ISOTONIC, PLATT, Calibration, balanced, brier, fit_calibration
from data_prep.cleaning.language_filter import languages_of
from data_prep.cleaning.quality_models import CLASSIFIER, Classifier, NgramModel

FIT, CALIBRATE, MEASURE = 0, 1, 2
_TENTHS = (FIT,) * 8 + (CALIBRATE, MEASURE)
_LEAST = 20  # texts of each set: fewer leave next to nothing to measure on
_BINS = 10
_NUM_IDENTIFIED = 200  # good texts, whose languages are the model's


@dataclass(frozen=True)
class Source:
    """Texts of one origin."""

    name: str
    is_good: bool
    texts: list[str]


@dataclass(frozen=True)
class Fitted:
    """A model and what it says of texts that it was not fitted on.

    Attributes:
        texts: held out, with the `sources` and `scores` of each.
        figures: for the manifest.
    """

    model: Classifier | NgramModel
    kind: str
    texts: list[str]
    sources: list[str]
    is_good: NDArray[np.bool_]
    scores: NDArray[np.float64]
    figures: dict[str, Any]


def fit(sources: Sequence[Source], kind: str, *, order: int = 5, calibrated: str = AUTO) -> Fitted:
    """The model of some sources.

    Args:
        order: of the n-grams of perplexity.
        calibrated: how the answer of a classifier becomes a probability, one of `CALIBRATIONS`.

    A text is fitted on, calibrated with or measured on by its hash, so that a text that comes twice is on one side.

    Raises:
        ValueError: if there are too few texts of either kind.
    """
    texts = [text for source in sources for text in source.texts]
    names = [source.name for source in sources for _ in source.texts]
    is_good = np.array([source.is_good for source in sources for _ in source.texts], bool)
    part = np.array([_TENTHS[xxhash.xxh3_64_intdigest(text.encode()) % 10] for text in texts], np.int64)
    for option, mine in (("good", is_good), ("web", ~is_good)):
        if (part[mine] != FIT).sum() < _LEAST or not all((part[mine] == one).any() for one in (FIT, CALIBRATE, MEASURE)):
            raise ValueError(
                f"--{option} has {mine.sum()} texts, too few to fit and measure on; give at least {10 * _LEAST},"
                " or cut what is longer into documents (--document-separator)"
            )

    def those(which: NDArray[np.bool_]) -> list[str]:
        return [texts[place] for place in np.flatnonzero(which)]

    model: Classifier | NgramModel
    held_out, figures = part == MEASURE, dict[str, Any]()
    if kind == CLASSIFIER:
        model = Classifier.fit(those(part == FIT), is_good[part == FIT])
        known = model.margins(those(part == CALIBRATE)), is_good[part == CALIBRATE]
        model.calibration, chosen = fit_calibration(*known, calibrated)
        curves = {"none": Calibration(), **{name: fit_calibration(*known, name)[0] for name in (PLATT, ISOTONIC)}}
        margins = model.margins(those(held_out))
        scores = model.calibration.probabilities(margins)
        figures |= _of_calibrations(curves, margins, is_good[held_out], chosen)
        measured = {"auc": auc(scores, is_good[held_out]), **calibration(scores, is_good[held_out])}
        measured["error_before_calibration"] = figures["calibrations"]["none"]["calibration_error"]
    else:
        model = NgramModel.fit(those(is_good & (part == FIT)), order)
        web = np.array([model.score(text) for text in those(~is_good & (part == CALIBRATE))])
        head, middle = np.quantile(web, [1 / 3, 2 / 3]).tolist()
        model.parts = {"head": head, "middle": middle}
        scores = np.array([model.score(text) for text in those(held_out)])
        measured = {"auc": auc(-scores, is_good[held_out])}
    figures |= {
        "kind": kind,
        "languages": languages_of(those(is_good & (part == FIT))[:_NUM_IDENTIFIED]),
        "texts": {source.name: len(source.texts) for source in sources},
        "held_out": {"good": int(is_good[held_out].sum()), "web": int((~is_good[held_out]).sum())},
        "measured": {name: round(value, 4) for name, value in measured.items()},
        "parts": {name: round(value, 4) for name, value in model.parts.items()},
    }
    return Fitted(model, kind, those(held_out), [names[place] for place in np.flatnonzero(held_out)], is_good[held_out], scores, figures)


def _of_calibrations(
    curves: Mapping[str, Calibration], margins: NDArray[np.float64], is_good: NDArray[np.bool_], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Which curve was chosen and why, what each is worth on held-out texts, and how reliable scores are with the chosen one and with none."""
    scores = {name: curve.probabilities(margins) for name, curve in curves.items()}
    worth = {name: {**calibration(found, is_good), "auc": auc(found, is_good)} for name, found in scores.items()}
    return {
        "calibration": dict(chosen),
        "calibrations": {name: {what: round(value, 4) for what, value in found.items()} for name, found in worth.items()},
        "reliability": {"calibrated": reliability(scores[chosen["method"]], is_good), "before": reliability(scores["none"], is_good)},
    }


def auc(scores: NDArray[np.float64], is_good: NDArray[np.bool_]) -> float:
    """How often a good text has a higher score than one of the web; half of equal ones.  Both arrays are (num_texts,)."""
    from scipy.stats import rankdata

    ranks = rankdata(scores)
    good, web = int(is_good.sum()), int((~is_good).sum())
    return float((ranks[is_good].sum() - good * (good + 1) / 2) / (good * web))


def reliability(scores: NDArray[np.float64], is_good: NDArray[np.bool_]) -> list[dict[str, float]]:
    """Of each of ten bins with texts in it: how probable their scores say that a text is good, how many are, and the texts.

    Both sets have the same weight.

    Args:
        scores, is_good: (num_texts,); scores are probabilities from 0 to 1.
    """
    weights, bins = balanced(is_good), _bins(scores)
    rows = []
    for number in range(_BINS):
        here = bins == number
        if here.any():
            said, true = (float(np.average(values[here], weights=weights[here])) for values in (scores, is_good.astype(float)))
            rows.append({"from": number / _BINS, "said": round(said, 4), "true": round(true, 4), "texts": int(here.sum())})
    return rows


def _bins(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.minimum((scores * _BINS).astype(np.int64), _BINS - 1)


def calibration(scores: NDArray[np.float64], is_good: NDArray[np.bool_]) -> dict[str, float]:
    """Brier score, expected calibration error over ten bins, and share of right answers at 0.5, both sets of the same weight.

    Args:
        scores, is_good: (num_texts,); scores are probabilities from 0 to 1.
    """
    weights, bins = balanced(is_good), _bins(scores)
    error = sum(abs(float((weights * (scores - is_good))[bins == number].sum())) for number in range(_BINS))
    return {
        "brier": brier(scores, is_good),
        "calibration_error": error,
        "right_at_half": float((weights * ((scores >= 0.5) == is_good)).sum()),
    }
