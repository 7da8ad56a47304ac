"""Language identification of documents and paragraphs: whether each is in one of the given languages and their scripts.

Identifiers are py3langid (97 languages, a model of 0.7 MB inside the package, no other dependency than numpy) and any fastText model by its path,
such as GlotLID's of 2,102 languages and scripts.  The answer depends on nothing but the text.  Language and script are two questions: py3langid
knows Serbian in Cyrillic only and calls the same sentences in Latin script Croatian, as identifiers tell languages that are written alike apart by little.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_prep.cleaning import fasttext_model
from data_prep.reading.languages import CLOSE_GROUPS, Groups, are_close, language_code, members, short_code

_CHARACTERS = 2000  # of a text are looked at, from its beginning
# What a language must have by default: py3langid is sure of nearly all, fastText models share out what is alike (lid.176: Slovene, Croatian, `sh`).
_LEAST_OF_PY3LANGID, _LEAST_OF_FASTTEXT = 0.5, 0.2
SCRIPTS = {
    "Arab": "Arabic", "Armn": "Armenian", "Beng": "Bengali", "Bopo": "Bopomofo", "Cher": "Cherokee", "Copt": "Coptic",
    "Cyrl": "Cyrillic", "Deva": "Devanagari", "Ethi": "Ethiopic", "Geor": "Georgian", "Goth": "Gothic", "Grek": "Greek", "Gujr": "Gujarati",
    "Guru": "Gurmukhi", "Hang": "Hangul", "Hani": "Han", "Hans": "Han", "Hant": "Han", "Hebr": "Hebrew", "Hira": "Hiragana", "Kana": "Katakana",
    "Khmr": "Khmer", "Knda": "Kannada", "Laoo": "Lao", "Latn": "Latin", "Mlym": "Malayalam", "Mong": "Mongolian", "Mymr": "Myanmar",
    "Orya": "Oriya", "Sinh": "Sinhala", "Syrc": "Syriac", "Taml": "Tamil", "Telu": "Telugu", "Thaa": "Thaana", "Thai": "Thai", "Tibt": "Tibetan",
}  # fmt: skip
TOGETHER, APART = CLOSE_LANGUAGES = ("together", "apart")
DOCUMENT, PARAGRAPH = LANGUAGE_UNITS = ("document", "paragraph")
_LETTERS_TO_TELL = 40  # a paragraph of fewer goes with those around it
_OTHER_BELOW = 0.1  # a paragraph goes if the languages that were asked for are less probable, together


class Identifier(Protocol):
    """Tells how probable each of its labels is for a text."""

    @property
    def labels(self) -> tuple[str, ...]:
        """What it can say."""

    def probabilities(self, text: str) -> NDArray[Any]:
        """(len(labels),) float, in the order of the labels."""


class Py3langid:
    """The identifier that is always at hand."""

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._identifier = LanguageIdentifier.from_pickled_model(MODEL_FILE, norm_probs=True)
        self.labels = tuple(map(str, self._identifier.nb_classes))

    def probabilities(self, text: str) -> NDArray[Any]:
        """(len(labels),) float64, in the order of the labels."""
        found = {str(language): float(score) for language, score in self._identifier.rank(text)}
        return np.array([found[label] for label in self.labels])


@cache
def _py3langid() -> Py3langid:
    return Py3langid()


def languages_of(texts: Iterable[str], least_share: float = 0.05) -> list[str]:
    """The languages that py3langid finds in at least such a share of some texts, the commonest first."""
    identifier = _py3langid()
    found = Counter(identifier.labels[int(identifier.probabilities(text[:_CHARACTERS]).argmax())] for text in texts)
    return [language for language, number in found.most_common() if number >= least_share * found.total()]


@dataclass(frozen=True)
class _Wanted:
    """A language that was asked for, the places of the labels that count as it, and the scripts that it may be in; none for any."""

    asked: str
    places: frozenset[int]
    scripts: tuple[str, ...]


class LanguageFilter:
    """Says whether a text is in one of some languages.

    Args:
        languages: ISO 639-1 or 639-3 codes, with a script behind a dash or underscore (sr-Latn, srp_Latn) where only that will do.
        min_score: probability that the language must have, and below 0.2, or beside a language of its group, be the most probable besides;
            a text below it is of no language.
            None for 0.5 with py3langid and 0.2 with a fastText model.
        model: file of a fastText model; None for py3langid.
        close_languages: `together`: languages of a group, which are taken for each other, count as one, whose probability is the sum of
            theirs, in the scripts of the language that was asked for; `apart`: the answer of the identifier as it is, in any script.
        groups: by name, each the scripts of its languages.

    Raises:
        ValueError: if the identifier does not know a language, a script is unknown, or the model cannot be read.
    """

    def __init__(
        self,
        languages: Sequence[str],
        min_score: float | None = None,
        *,
        model: Path | None = None,
        close_languages: str = TOGETHER,
        groups: Groups = CLOSE_GROUPS,
    ) -> None:
        if min_score is None:
            min_score = _LEAST_OF_PY3LANGID if model is None else _LEAST_OF_FASTTEXT
        if not 0 <= min_score <= 1:
            raise ValueError(f"--min-language-score is {min_score:g}; expected a probability from 0 to 1")
        self._identifier: Identifier = _py3langid() if model is None else fasttext_model.load(model)
        self._labels = tuple(language_code(label) for label in self._identifier.labels)
        self._min_score = min_score
        self._requested = [self._find(asked, groups if close_languages == TOGETHER else {}) for asked in languages]
        self._all_places = frozenset().union(*(requested.places for requested in self._requested))

    def _find(self, asked: str, groups: Groups) -> _Wanted:
        code = language_code(asked)
        if re.search("[-_]", asked) and code.script not in SCRIPTS:
            raise ValueError(f"--language {asked} names an unknown script; the known ones are {', '.join(SCRIPTS)}")
        group: dict[str, Sequence[str]] = {code.language: ()}
        for found in groups.values():
            by_code = {language_code(language).language: scripts for language, scripts in found.items()}
            if code.language in by_code:
                group = by_code
                break
        places = {place for place, label in enumerate(self._labels) if label.language in group}
        # Tosk Albanian (als) is Albanian, but not to a model that has a label for Albanian: lid.176 calls Alemannic als, as Wikipedia does.
        places = places or {place for place, label in enumerate(self._labels) if label.language in members(asked)}
        if not places:
            known = sorted({short_code(label) for label in self._identifier.labels})
            raise ValueError(f"--language {asked} is unknown; the known ones are {', '.join(known)}")
        scripts = (code.script,) if code.script else tuple(group.get(code.language, ()))
        # The label of another script is no answer where one was asked for and the model tells them apart (srp_Cyrl, srp_Latn).
        in_script = {place for place in places if not scripts or self._labels[place].script in ("", *scripts)}
        return _Wanted(asked, frozenset(in_script or places), tuple(SCRIPTS[script] for script in scripts))

    def found(self, text: str) -> tuple[str, float]:
        """The most probable language, as the identifier calls it, and its probability."""
        scores = self._identifier.probabilities(text[:_CHARACTERS])
        best = int(scores.argmax())
        return self._identifier.labels[best], float(scores[best])

    def refuses(self, text: str) -> str | None:
        """Why the text does not pass: the language found, and its script where that is why; None where it passes."""
        return self.judge(text)[1]

    def judge(self, text: str) -> tuple[str | None, str | None]:
        """The language that was asked for and the text is in, and None; or None, and why the text is in none of them."""
        text = text[:_CHARACTERS]
        scores = self._identifier.probabilities(text)
        best = int(scores.argmax())
        found = f"{self._identifier.labels[best]} {scores[best]:.2f}"
        shares = [sum(float(scores[place]) for place in requested.places) for requested in self._requested]
        in_language = [
            requested
            for requested, share in zip(self._requested, shares)
            if share >= self._min_score
            and (
                best in requested.places or (share >= _LEAST_OF_FASTTEXT and not are_close(requested.asked, self._identifier.labels[best]))
            )
        ]
        if not in_language:
            return None, found
        script = _script_of(text) if any(requested.scripts for requested in in_language) else ""
        for requested in sorted(in_language, key=lambda one: best not in one.places):  # the most probable first, else as asked for
            if not requested.scripts or script in requested.scripts:
                return requested.asked, None
        return None, f"{found} in {script} script"

    def cut(self, text: str) -> tuple[str, list[str]]:
        """The text without its paragraphs (lines) in other languages or scripts, and these.

        A paragraph goes if it has letters enough to tell and the languages that were asked for are improbable; one that is too short
        or without a verdict is removed only if both its nearest neighbours with a verdict are (at an end, the only one).
        """
        lines = text.split("\n")
        verdicts = [self._tell(line) for line in lines]
        if False not in verdicts:
            return text, []
        stays = _with_neighbours(verdicts)
        gone = [line for line, kept in zip(lines, stays) if not kept and line.strip()]
        return "\n".join(line for line, kept in zip(lines, stays) if kept).strip("\n"), gone

    def _tell(self, line: str) -> bool | None:
        """Whether a line is in one of the languages and its script; None where that cannot be decided."""
        if sum(map(str.isalpha, line)) < _LETTERS_TO_TELL:
            return None
        line = line[:_CHARACTERS]
        scores = self._identifier.probabilities(line)
        if sum(float(scores[place]) for place in self._all_places) < _OTHER_BELOW:
            return False
        script = _script_of(line)
        if all(requested.scripts and script not in requested.scripts for requested in self._requested):
            return False
        best = int(scores.argmax())
        return True if best in self._all_places else None


def _with_neighbours(verdicts: Sequence[bool | None]) -> list[bool]:
    """What stays: a line without a verdict stays unless the nearest verdicts before and after it are both negative."""
    before, behind = _nearest(verdicts), _nearest(verdicts[::-1])[::-1]
    return [known if known is not None else {one, other} - {None} != {False} for known, one, other in zip(verdicts, before, behind)]


def _nearest(verdicts: Sequence[bool | None]) -> list[bool | None]:
    """For each line the last verdict up to itself."""
    found: list[bool | None] = []
    for known in verdicts:
        found.append(known if known is not None or not found else found[-1])
    return found


def _script_of(text: str) -> str:
    """The script of most letters; `no` of a text without any."""
    counts = Counter(script_of_letter(character) for character in text if character.isalpha())
    return counts.most_common(1)[0][0] if counts else "no"


# First words of character names that are names of scripts; all others, such as MATHEMATICAL, are not.
_SCRIPTS = {
    "ARABIC", "ARMENIAN", "BENGALI", "BOPOMOFO", "CHEROKEE", "CJK", "COPTIC", "CYRILLIC", "DEVANAGARI", "ETHIOPIC", "GEORGIAN", "GOTHIC",
    "GREEK", "GUJARATI", "GURMUKHI", "HANGUL", "HEBREW", "HIRAGANA", "KANNADA", "KATAKANA", "KHMER", "LAO", "LATIN", "MALAYALAM",
    "MONGOLIAN", "MYANMAR", "ORIYA", "RUNIC", "SINHALA", "SYRIAC", "TAMIL", "TELUGU", "THAANA", "THAI", "TIBETAN",
}  # fmt: skip
_RENAMED = {"CJK": "Han"}


def script_of(data: bytes) -> str:
    """The script of the first letter of a token, or what the token is where it has none."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "parts of characters"
    for character in text:
        if unicodedata.category(character)[0] == "L":
            return script_of_letter(character)
    categories = {unicodedata.category(character)[0] for character in text.strip()}
    if not categories:
        return "white space"
    return "digits" if "N" in categories else "punctuation and symbols"


@cache
def script_of_letter(letter: str) -> str:
    """The script of one letter, by the first word of its name."""
    name = unicodedata.name(letter, "").partition(" ")[0]
    return _RENAMED.get(name, name.capitalize()) if name in _SCRIPTS else "other letters"
