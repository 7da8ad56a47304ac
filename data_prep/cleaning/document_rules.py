"""Document filters: each is a small class that gives the reason for a removal.

What filters share is around them, once: the texts, the numbers that one compiled pass counts of them (`text_measures`), the reasons.  A filter of your own
is a subclass of `Filter` in this file, whose fields are what a rule of the YAML may set: `rules: {my rule: {filter: MyFilter, minimum: 3}}`.
A number that rules may ask for (`measure:`) is a function in `MEASURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep.cleaning import mojibake
from data_prep.cleaning.text_measures import ALL_NGRAMS, Measurer, Measures

Mask = NDArray[np.bool_]
Column = NDArray[np.float64]


@dataclass
class Text:
    """One text as a filter sees it."""

    text: str

    @cached_property
    def words(self) -> list[str]:
        """What stands between white space."""
        return self.text.split()

    @cached_property
    def lines(self) -> list[str]:
        """Those with something in them."""
        return [line for line in self.text.split("\n") if line.strip()]


class Texts:
    """Some texts of one language, and numbers of them by the names of `MEASURES`, each counted when it is first asked for.

    Args:
        ngrams: the fewest and the most tokens of n-grams of which numbers may be asked for.
    """

    def __init__(self, texts: Sequence[str], measurer: Measurer, ngrams: tuple[int, int] = ALL_NGRAMS) -> None:
        self.texts = [Text(text) for text in texts]
        self._measurer, self._ngrams = measurer, ngrams
        self._columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, measure: str) -> Column:
        """(num_texts,) a number of each text."""
        if measure not in self._columns:
            self._columns[measure] = MEASURES[measure](self)
        return self._columns[measure]

    @cached_property
    def counted(self) -> NDArray[np.float64]:
        """(num_texts, num_measures) what the compiled pass counts, as `Measures` names it."""
        data = [text.text.encode() for text in self.texts]
        offsets = np.cumsum([0, *map(len, data)], dtype=np.int64)
        return self._measurer.measures(b"".join(data), offsets, self._ngrams)


def wrong_places(texts: Texts) -> Column:
    """Places that still look wrongly decoded, for each word (`mojibake.leftovers`)."""
    return np.array([mojibake.leftovers(text.text) for text in texts.texts]) / np.maximum(texts["words"], 1)


def _counted(place: int) -> Callable[[Texts], Column]:
    return lambda texts: texts.counted[:, place]


MEASURES: dict[str, Callable[[Texts], Column]] = {
    **{name: _counted(place) for place, name in enumerate(Measures._fields)},
    "ended_lines": lambda texts: texts["terminal_lines"] - texts["ellipsis_lines"],  # that end with no ellipsis
    "wrong_places": wrong_places,
}
NGRAMS = {name: int(name.split("_")[1]) for name in Measures._fields if name.endswith("_gram")}


@dataclass(frozen=True)
class Filter:
    """Drops documents; `name` is the reason that reports give.  A subclass says in `reason` why one text goes."""

    name: str

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that it looks at."""
        return ()

    def reason(self, text: Text) -> str | None:
        """Why a text goes, for instance the number that is too high; None where it stays."""
        raise NotImplementedError

    def refused(self, texts: Texts, left: Mask) -> Iterator[tuple[int, str]]:
        """Numbers of the texts that go, of those that are left, and why.  Only filters of whole columns of numbers have their own."""
        for number in np.flatnonzero(left).tolist():
            if (reason := self.reason(texts.texts[number])) is not None:
                yield number, reason


@dataclass(frozen=True)
class Threshold(Filter):
    """Drops texts of at least `from_words` words and `from_lines` lines whose measure is above `max` or below `min`.

    Attributes:
        unless: a text that this one does not refuse is not asked.
        needs_stop_words: not asked in a language without a list of them.
    """

    measure: str
    max: float | None = None
    min: float | None = None
    from_words: int = 0
    from_lines: int = 0
    unless: Threshold | None = None
    needs_stop_words: bool = False

    @property
    def measures(self) -> tuple[str, ...]:
        """See `Filter`."""
        return (self.measure, *(self.unless.measures if self.unless else ()))

    def asked(self, texts: Texts) -> Mask:
        """(num_texts,) which texts are long enough, and have nothing that speaks for them."""
        asked: Mask = (texts["words"] >= self.from_words) & (texts["lines"] >= self.from_lines)
        return asked & self.unless.beyond(texts) if self.unless else asked

    def beyond(self, texts: Texts) -> Mask:
        """(num_texts,) which texts' values are beyond the threshold; a value equal to it is not."""
        values = texts[self.measure]
        above = values > (np.inf if self.max is None else self.max)
        return above | (values < (-np.inf if self.min is None else self.min))

    def refused(self, texts: Texts, left: Mask) -> Iterator[tuple[int, str]]:
        """See `Filter`."""
        beyond = left & self.beyond(texts)
        if beyond.any():
            for number in np.flatnonzero(beyond & self.asked(texts)).tolist():
                yield number, self.detail(texts, number)

    def detail(self, texts: Texts, number: int) -> str:
        """The value of a text."""
        return f"{self.measure} {texts[self.measure][number]:.4g}"


@dataclass(frozen=True)
class Holes(Threshold):
    """Drops texts of whose characters too many are U+FFFD."""

    def detail(self, texts: Texts, number: int) -> str:
        """How many."""
        return f"{texts['holes'][number]:.0f} of U+FFFD"


@dataclass(frozen=True)
class SameText(Filter):
    """Drops texts that were there before, of at least so many words."""

    from_words: int = 0
    seen: set[int] = field(default_factory=set, compare=False)

    def refused(self, texts: Texts, left: Mask) -> Iterator[tuple[int, str]]:
        """See `Filter`."""
        yield from super().refused(texts, left & (texts["words"] >= self.from_words))

    def reason(self, text: Text) -> str | None:
        """See `Filter`."""
        digest = xxhash.xxh3_64_intdigest(text.text.encode())
        if digest in self.seen:
            return "was in this file before"
        self.seen.add(digest)
        return None


@dataclass(frozen=True)
class Phrases(Filter):
    """Drops texts with one of some phrases; one of a single word counts where it begins a word."""

    phrases: tuple[str, ...] = ()

    def reason(self, text: Text) -> str | None:
        """See `Filter`."""
        small = text.text.lower()
        found = any(phrase in small if " " in phrase else begins_a_word(phrase, small) for phrase in map(str.lower, self.phrases))
        return "" if found else None


def begins_a_word(phrase: str, line: str) -> bool:
    """Whether a phrase is in a line and no end of a longer word there."""
    at = line.find(phrase)
    while at > 0 and phrase[:1].isalnum() and line[at - 1].isalnum():
        at = line.find(phrase, at + 1)
    return at >= 0


def refusals(filters: Iterable[Filter], texts: Texts) -> list[tuple[str, str] | None]:
    """For each text the first filter that refuses it and why; None where none does."""
    found: list[tuple[str, str] | None] = [None] * len(texts)
    left = np.ones(len(texts), np.bool_)
    for rule in filters:
        for number, detail in rule.refused(texts, left):
            found[number] = (rule.name, detail)
            left[number] = False
    return found


def ngrams_of(filters: Iterable[Filter]) -> tuple[int, int]:
    """The fewest and the most tokens of n-grams that filters ask for, those between them included; (2, 1) where they ask for none."""
    sizes = [NGRAMS[name] for rule in filters for name in rule.measures if name in NGRAMS]
    return (min(sizes), max(sizes)) if sizes else (2, 1)


def filter_classes() -> dict[str, type[Filter]]:
    """Those that a rule may name as its `filter`."""
    return {kind.__name__: kind for kind in Filter.__subclasses__() if kind not in (Threshold, SameText)}
