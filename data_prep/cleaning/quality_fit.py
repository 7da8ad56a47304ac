"""A model of good text fitted, and measured on texts that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep.cleaning.quality_models import CLASSIFIER, Classifier, NgramModel

FIT, CALIBRATE, MEASURE = 0, 1, 2
_TENTHS = (FIT,) * 8 + (CALIBRATE, MEASURE)
_LEAST = 20  # texts of each set: fewer leave next to nothing to measure on
_BINS = 10


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


def fit(sources: Sequence[Source], kind: str, *, order: int = 5) -> Fitted:
    """The model of some sources.

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
    if kind == CLASSIFIER:
        model = Classifier.fit(those(part == FIT), is_good[part == FIT], those(part == CALIBRATE), is_good[part == CALIBRATE])
    else:
        model = NgramModel.fit(those(is_good & (part == FIT)), order)
        web = np.array([model.score(text) for text in those(~is_good & (part == CALIBRATE))])
        head, middle = np.quantile(web, [1 / 3, 2 / 3]).tolist()
        model.parts = {"head": head, "middle": middle}
    held_out = part == MEASURE
    scores = model.scores(those(held_out)) if isinstance(model, Classifier) else np.array([model.score(text) for text in those(held_out)])
    measured = {"auc": auc(scores if kind == CLASSIFIER else -scores, is_good[held_out])}
    if kind == CLASSIFIER:
        measured |= calibration(scores, is_good[held_out])
    figures = {
        "kind": kind,
        "texts": {source.name: len(source.texts) for source in sources},
        "held_out": {"good": int(is_good[held_out].sum()), "web": int((~is_good[held_out]).sum())},
        "measured": {name: round(value, 4) for name, value in measured.items()},
        "parts": {name: round(value, 4) for name, value in model.parts.items()},
    }
    return Fitted(model, kind, those(held_out), [names[place] for place in np.flatnonzero(held_out)], is_good[held_out], scores, figures)


def auc(scores: NDArray[np.float64], is_good: NDArray[np.bool_]) -> float:
    """How often a good text has a higher score than one of the web; half of equal ones."""
    from scipy.stats import rankdata

    ranks = rankdata(scores)
    good, web = int(is_good.sum()), int((~is_good).sum())
    return float((ranks[is_good].sum() - good * (good + 1) / 2) / (good * web))


def calibration(scores: NDArray[np.float64], is_good: NDArray[np.bool_]) -> dict[str, float]:
    """Brier score, expected calibration error over ten bins, and share of right answers at 0.5, both sets of the same weight."""
    weights = np.where(is_good, 0.5 / is_good.sum(), 0.5 / (~is_good).sum())
    bins = np.minimum((scores * _BINS).astype(int), _BINS - 1)
    error = sum(abs(float((weights * (scores - is_good))[bins == number].sum())) for number in range(_BINS))
    return {
        "brier": float((weights * (scores - is_good) ** 2).sum()),
        "calibration_error": error,
        "right_at_half": float((weights * ((scores >= 0.5) == is_good)).sum()),
    }
