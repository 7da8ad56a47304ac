"""Two models of how good a text is: a classifier of good text against web text, and how well n-grams of characters of good text foretell it.

Classifier: logistic regression over hashed words and pairs of words, as fastText classifiers of quality are (Brown et al. 2020, appendix A; Li et al. 2024),
its answer calibrated.  Perplexity: that of a character, by an interpolated model of n-grams (Witten and Bell 1991), in place of CCNet's
5-grams of pieces with KenLM (Wenzek et al. 2020), which has no build for Python without a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_prep.cleaning.calibration import Calibration

MODEL_NAME = "model.npz"
CLASSIFIER, PERPLEXITY = KINDS = ("classifier", "perplexity")
_FEATURES = 1 << 18
_CHARACTERS = 10_000  # of a text are looked at, from its beginning
_TOKEN = r"(?u)\w+|[^\w\s]|\n"
_STRENGTH = 10.0  # C of the regression: little regularisation, as features are normalized to length 1
_ITERATIONS = 300
_CODE_POINTS = 0x110000
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_CHUNK = 1 << 22
_SPACE, _DIGIT = re.compile(r"\s+"), re.compile(r"\d")


class QualityModel(Protocol):
    """Gives a text a number.

    Attributes:
        parts: names of parts of a corpus, each with the largest number in it.
    """

    @property
    def parts(self) -> Mapping[str, float]:
        """See above."""

    def score(self, text: str) -> float:
        """The number of a text."""


@dataclass
class Classifier:
    """The probability that a text is of the good ones, where there are as many of both.

    Attributes:
        weights: (2**18,) of the hashed words and pairs.
        calibration: of the regression's own answer.
    """

    weights: NDArray[np.float32]
    intercept: float
    calibration: Calibration = field(default_factory=Calibration)
    parts: Mapping[str, float] = field(default_factory=dict)

    def score(self, text: str) -> float:
        """A probability from 0 to 1."""
        return float(self.scores([text])[0])

    def scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """(len(texts),) the probability of each text."""
        return self.calibration.probabilities(self.margins(texts))

    def margins(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """(len(texts),) the regression's own answer for each text, the logarithm of the odds that it gives."""
        return np.asarray(_features(texts) @ self.weights, np.float64) + self.intercept

    @classmethod
    def fit(cls, texts: Sequence[str], is_good: NDArray[np.bool_]) -> Classifier:
        """Regression on the texts, not calibrated; good and web texts weigh the same however many they are.

        Args:
            is_good: (len(texts),)
        """
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=_STRENGTH, class_weight="balanced", max_iter=_ITERATIONS).fit(_features(texts), is_good)
        return cls(model.coef_[0].astype(np.float32), float(model.intercept_[0]))

    def save(self, path: Path) -> None:
        """Write the file."""
        numbers = np.array([self.intercept, self.calibration.slope, self.calibration.offset])
        np.savez(path, kind=np.array(CLASSIFIER), weights=self.weights, numbers=numbers, knots=self.calibration.knots)


def _features(texts: Sequence[str]) -> Any:
    return _hasher().transform(text[:_CHARACTERS] for text in texts)


@lru_cache(maxsize=1)
def _hasher() -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(token_pattern=_TOKEN, ngram_range=(1, 2), n_features=_FEATURES, alternate_sign=False, dtype=np.float32)


@dataclass
class NgramModel:
    """Perplexity of a character: how many characters a model of good text takes to be possible at each place, on average.

    Attributes:
        keys: for each order from 1 on, sorted hashes of its n-grams.
        counts: how often each was seen; `followed` and `kinds`: how often something stood behind it, and how many different characters.
        parts: the largest perplexity in the head and the middle of a corpus (CCNet): thirds of its documents.
    """

    keys: list[NDArray[np.uint64]]
    counts: list[NDArray[np.float32]]
    followed: list[NDArray[np.float32]]
    kinds: list[NDArray[np.float32]]
    totals: tuple[float, float]
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def order(self) -> int:
        """Of its longest n-grams."""
        return len(self.keys)

    def score(self, text: str) -> float:
        """The perplexity of a character of the text; infinite of a text without one."""
        letters = _letters(text[:_CHARACTERS])
        if not len(letters):
            return float("inf")
        seen, kinds = self.totals
        probability = np.full(len(letters), 1 / _CODE_POINTS)
        followed, context_kinds = np.full(len(letters), seen), np.full(len(letters), kinds)
        for order, hashes in enumerate(_hashes(letters, self.order)):
            keys = self.keys[order]
            places = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
            known = keys[places] == hashes
            counts = np.where(known, self.counts[order][places], 0)
            # The n-gram's first characters are the context, which was looked up one order below, one place before.
            weight = followed + context_kinds
            at = np.arange(len(letters)) >= order
            mixed = (counts + context_kinds * probability) / np.maximum(weight, 1)
            probability = np.where(at & (weight > 0), mixed, probability)
            followed = np.concatenate([[0.0], np.where(known, self.followed[order][places], 0)[:-1]])
            context_kinds = np.concatenate([[0.0], np.where(known, self.kinds[order][places], 0)[:-1]])
        return float(np.exp(-np.log(probability).mean()))

    @classmethod
    def fit(cls, texts: Iterable[str], order: int) -> NgramModel:
        """Counts of all n-grams up to an order; each text is by itself."""
        tables = [(np.zeros(0, np.uint64), np.zeros((0, 3)))] * order
        batch: list[NDArray[np.uint32]] = []
        size = 0
        for text in texts:
            batch.append(_letters(text))
            size += len(batch[-1])
            if size >= _CHUNK:
                tables, batch, size = _counted(tables, batch, order), [], 0
        tables = _counted(tables, batch, order)
        if not len(tables[0][0]):
            raise ValueError("the good texts hold no character; give files with text")
        tables = [table for table in tables if len(table[0])]  # no text may be as long as the longest n-grams
        columns = [[values[:, place].astype(np.float32) for _, values in tables] for place in range(3)]
        counts = tables[0][1][:, 0]
        return cls([keys for keys, _ in tables], columns[0], columns[1], columns[2], (float(counts.sum()), float(len(counts))))

    def save(self, path: Path) -> None:
        """Write the file."""
        arrays = {
            f"{name}_{order}": values
            for name in ("keys", "counts", "followed", "kinds")
            for order, values in enumerate(getattr(self, name))
        }
        parts = {"part_names": np.array(list(self.parts)), "part_limits": np.array(list(self.parts.values()), np.float64)}
        np.savez(path, kind=np.array(PERPLEXITY), totals=np.array(self.totals), **parts, **arrays)


def _letters(text: str) -> NDArray[np.uint32]:
    """Code points of a text in small letters, with 0 for every digit and one space for white space, as CCNet reads text."""
    plain = _DIGIT.sub("0", _SPACE.sub(" ", text.lower()).strip())
    return np.frombuffer(plain.encode("utf-32-le"), np.uint32)


def _hashes(letters: NDArray[np.uint32], order: int) -> Iterable[NDArray[np.uint64]]:
    """For each order the hash of the n-gram that ends at each place; at the first places, where there is none, that of a shorter one."""
    own = letters.astype(np.uint64) + np.uint64(1)
    hashes = own * _MULTIPLIER
    for number in range(order):
        if number:
            hashes = np.concatenate([own[:1], hashes[:-1] * _MULTIPLIER + own[1:]]) * _MULTIPLIER
        yield hashes


_Table = tuple[NDArray[np.uint64], NDArray[np.float64]]


def _counted(tables: Sequence[_Table], batch: Sequence[NDArray[np.uint32]], order: int) -> list[_Table]:
    """The tables with the n-grams of more texts: hash -> count, number of characters behind it, number of different ones."""
    hashes = [list(_hashes(letters, order)) for letters in batch]
    result: list[_Table] = []
    for number in range(order):
        unique, first, counts = np.unique(_together(of[number][number:] for of in hashes), return_index=True, return_counts=True)
        values = np.zeros((len(unique), 3))
        values[:, 0] = counts
        result.append(_joined(tables[number], (unique, values)))
        if number:
            contexts = _together(of[number - 1][number - 1 : -1] for of in hashes)
            keys_below, values_below = result[number - 1]
            np.add.at(values_below[:, 1], np.searchsorted(keys_below, contexts), 1)
            # A character behind a context is a new one if its n-gram was not in the table of the batches before.
            is_new = ~np.isin(unique, tables[number][0])
            np.add.at(values_below[:, 2], np.searchsorted(keys_below, contexts[first[is_new]]), 1)
    return result


def _together(parts: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _joined(one: _Table, other: _Table) -> _Table:
    keys, places = np.unique(np.concatenate([one[0], other[0]]), return_inverse=True)
    values = np.zeros((len(keys), 3))
    np.add.at(values, places, np.concatenate([one[1], other[1]]))
    return keys, values


@lru_cache(maxsize=4)
def load_model(directory: Path) -> Classifier | NgramModel:
    """The model of an output of data_prep.fit_quality, read once in a process.

    Raises:
        ValueError: if there is none.
    """
    path = directory / MODEL_NAME
    if not path.is_file():
        raise ValueError(f"{directory} holds no {MODEL_NAME}; expected an output of data_prep.fit_quality")
    try:
        with np.load(path) as saved:
            arrays = {name: saved[name] for name in saved.files}
        return _of_arrays(arrays)
    except MemoryError:
        raise
    except Exception as error:  # zipfile and numpy have many for a damaged file, of which none names it
        raise ValueError(f"{path} is no whole model of data_prep.fit_quality; make it again") from error


def _of_arrays(saved: Mapping[str, NDArray[Any]]) -> Classifier | NgramModel:
    """The model of the arrays of a file.

    Raises:
        ValueError: if their numbers or sizes are not those of a model.
        KeyError: if one is missing.
    """
    if any(values.dtype.kind == "f" and not np.isfinite(values).all() for values in saved.values()):
        raise ValueError("it holds NaN or infinite numbers")
    if str(saved["kind"]) == CLASSIFIER:
        intercept, slope, offset = saved["numbers"].tolist()
        knots = saved.get("knots", np.zeros((2, 0)))  # older ones know Platt's curve alone
        if saved["weights"].shape != (_FEATURES,) or saved["weights"].dtype != np.float32 or knots.ndim != 2 or len(knots) != 2:
            raise ValueError("its arrays are not of the size or kind of a classifier's")
        return Classifier(saved["weights"], intercept, Calibration(slope, offset, knots))
    order = sum(name.startswith("keys_") for name in saved)
    keys, counts, followed, behind = (
        [saved[f"{name}_{number}"] for number in range(order)] for name in ("keys", "counts", "followed", "kinds")
    )
    columns = zip(keys, counts, followed, behind)
    if not order or any(not len(key) or any(column.shape != key.shape for column in others) for key, *others in columns):
        raise ValueError("its arrays are not of the size of n-grams")
    parts = dict(zip(map(str, saved["part_names"]), map(float, saved["part_limits"])))
    seen, kinds = saved["totals"].tolist()
    return NgramModel(keys, counts, followed, behind, (seen, kinds), parts)
