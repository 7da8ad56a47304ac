"""Filter thresholds for a language, fitted on reference text by the share of it that each rule removes.

FineWeb2 (Penedo et al. 2025) fits thresholds on texts such as Wikipedia and takes for stop words what is more than 0.8 % of the words.  Here a
threshold is moved until it takes no more than a given share of the reference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_prep.cleaning.code_points import folded
from data_prep.cleaning.document_rules import Texts, Threshold
from data_prep.cleaning.filter_settings import own_settings, settings_for
from data_prep.cleaning.text_measures import Measurer

LOOSER, BOTH = DIRECTIONS = ("looser", "both")
_STOP_WORD_SHARE = 0.008
_DIGITS = 3


@dataclass(frozen=True)
class Fitted:
    """One rule on the reference: its threshold before and after, and the share of the documents that each takes."""

    rule: Threshold
    threshold: float
    share_before: float
    share_after: float
    num_documents: int

    @property
    def side(self) -> str:
        """Which of `max` and `min` it is."""
        return "max" if self.rule.max is not None else "min"


def stop_words(texts: Iterable[str]) -> list[str]:
    """The words of letters that are more than 0.8 % of all, the commonest first."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for part in text.split() if (word := folded(part.strip("\"'.,;:!?()[]»«„“”’‘–—-…"))).isalpha())
    least = _STOP_WORD_SHARE * counts.total()
    return [word for word, number in counts.most_common(100) if number > least]


def fit(
    filters: Mapping[str, Any], language: str, texts: list[str], *, lost: float, direction: str = LOOSER
) -> tuple[list[str], list[Fitted]]:
    """Stop words of the reference texts, and each rule with the threshold that takes at most `lost` of them.

    Args:
        direction: `looser`: a rule that takes less already stays; `both`: it is made to take that much.

    Raises:
        ValueError: if there are so few texts that the share is less than one of them.
    """
    if lost * len(texts) < 1:
        raise ValueError(f"--lost {lost:g} of {len(texts)} documents is less than one; give more reference text, or a larger share")
    words = stop_words(texts)
    whole = {**filters, "languages": {**filters["languages"], language: {**own_settings(filters, language), "stop_words": words}}}
    settings = settings_for(whole, language)
    measured = Texts(texts, Measurer(settings.stop_words))
    fitted = []
    for rule in settings.rules:
        if not isinstance(rule, Threshold) or rule.measure == "wrong_places" or (rule.max is not None and rule.min is not None):
            continue
        values = np.sort(measured[rule.measure][rule.asked(measured)])
        if len(values):
            fitted.append(_fitted(rule, values, lost, direction))
    return words, fitted


def _fitted(rule: Threshold, values: np.ndarray, lost: float, direction: str) -> Fitted:
    """The threshold, of three figures and rounded to the side on which it takes less."""
    is_max = rule.max is not None
    before = rule.max if rule.max is not None else rule.min
    assert before is not None

    def share(threshold: float) -> float:
        return float(np.mean(values > threshold if is_max else values < threshold))

    allowed = int(lost * len(values))
    edge = float(values[len(values) - 1 - allowed] if is_max else values[allowed])
    threshold = _rounded(edge, up=is_max)
    if direction == LOOSER and share(before) <= lost:
        threshold = before
    return Fitted(rule, threshold, share(before), share(threshold), len(values))


def _rounded(value: float, *, up: bool) -> float:
    if value == 0:
        return 0.0
    scale = 10.0 ** (_DIGITS - 1 - math.floor(math.log10(abs(value))))
    return (math.ceil(value * scale - 1e-9) if up else math.floor(value * scale + 1e-9)) / scale


def as_settings(base: str, language: str, words: list[str], fitted: Iterable[Fitted]) -> dict[str, Any]:
    """What a filter file says of the language: the thresholds that moved, and the stop words."""
    moved = {
        item.rule.name: {item.side: item.threshold}
        for item in fitted
        if item.threshold != (item.rule.max if item.side == "max" else item.rule.min)
    }
    return {"base": base, "languages": {language: {"stop_words": words, "rules": moved}}}
