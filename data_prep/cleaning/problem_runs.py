"""Runs of problematic characters removed: the heuristic that GaMS used on KAS, theses read from PDF (Vreš et al. 2024, section 3).

A token of nothing but problematic characters is a problematic token; a run of such tokens goes if their characters, white space not counted,
are at least 5.  The paper leaves open what this module makes options of: which letters are the language's own (both cases, here),
whether letters of other alphabets are problematic, whether typographic marks are, and whether the 5 are of the run or of
each token.  Two things are ours: a run ends with its line, as a paragraph is one thing, and quotation marks do not count,
since a run that takes the opening one of a sentence damages the text around it; pairs within a run go with it.  A token is a word (letters, digits, marks joined to them) or a single other character; the paper's NLTK
tokens differ from these only at marks beside ASCII, which are in no run either way.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass

import regex

from common.options import option, require_values
from data_prep.reading.languages import short_code

# Letters beyond ASCII of a language's own spelling.
LETTERS = {
    "bs": "čćđšž",
    "cs": "áčďéěíňóřšťúůýž",
    "de": "äöüß",
    "en": "",
    "es": "áéíñóúü",
    "fr": "àâæçéèêëîïôœùûüÿ",
    "hr": "čćđšž",
    "hu": "áéíóöőúüű",
    "it": "àèéìíîòóùú",
    "pl": "ąćęłńóśźż",
    "pt": "áâãàçéêíóôõú",
    "sk": "áäčďéíĺľňóôŕšťúýž",
    "sl": "čšž",
    "sr": "čćđšžабвгдђежзијклљмнњопрстћуфхцчџш",
}
TYPOGRAPHY = "„“”‟‘’‚‛«»‹›–—―−…·•§°€£©®™×÷±½¼¾²³‰′″¿¡"
QUOTES = ("„“”‟", "‘’‚‛", "«»", "‹›")  # marks that may make a pair, in the manner of any language
COUNTED = ("run", "token")
REMOVE, KEEP = TREATMENTS = ("remove", "keep")


@dataclass(frozen=True)
class ProblemRuns:
    """What a problematic run is.

    Attributes:
        language: whose letters are not problematic, of `LETTERS`; ASCII never is.
        allowed: further characters that are not.
        other_alphabets: whether letters of other alphabets than the Latin one are problematic and removed (GaMS's text can be read both ways).
        typography: whether typographic quotes, dashes, currency signs and the like are.
        min_characters: minimum length of a run to remove.
        counted: what has so many: the whole `run`, or each `token`, in which case only such tokens go.

    Raises:
        ValueError: if the language is unknown.
    """

    language: str = option(
        "--problem-runs LANG",
        f"remove runs of characters outside the alphabet of this language: {', '.join(LETTERS)} (default: no removal)",
        MISSING,
    )
    allowed: str = option("--allow-characters CHARS", "additional characters to allow", "")
    other_alphabets: str = option("--other-alphabets", "treatment of letters of other alphabets", REMOVE, choices=TREATMENTS)
    typography: str = option("--typography", "treatment of typographic quotes, dashes, ellipses and signs", REMOVE, choices=TREATMENTS)
    min_characters: int = option("--problem-run-length N", "minimum length of a run to remove, in characters", 5, least=1)
    counted: str = option(
        "--problem-run-counts", "text in which the characters of --problem-run-length are counted", "run", choices=COUNTED
    )

    def __post_init__(self) -> None:
        require_values(self)
        if short_code(self.language) not in LETTERS:
            raise ValueError(
                f"--problem-runs knows no language {self.language!r}, only {', '.join(LETTERS)};"
                " take en and name the language's letters with --allow-characters"
            )

    def remover(self) -> ProblemRunRemover:
        """A step of cleaning that takes them out."""
        return ProblemRunRemover(self)


class ProblemRunRemover:
    """Takes problematic runs out of text; quotation marks of pairs that are not whole within a run stay."""

    def __init__(self, rules: ProblemRuns) -> None:
        letters = LETTERS[short_code(rules.language)] + rules.allowed
        allowed = regex.escape(
            "".join(sorted({*letters, *letters.upper(), *(TYPOGRAPHY if rules.typography == KEEP else "")})), special_only=False
        )
        problem = f"[^\\x00-\\x7F\\s{allowed}]"
        if rules.other_alphabets == KEEP:
            problem = f"[{problem}--[\\p{{L}}--\\p{{Latin}}]]"
        self._rules = rules
        self._any = regex.compile(problem, regex.V1)
        self._stretch = regex.compile(f"{problem}(?:[^\\S\\n]*{problem})*", regex.V1)

    def __call__(self, text: str) -> str:
        """The text without them."""
        return text if text.isascii() or not self._any.search(text) else self._stretch.sub(self._replacement, text)

    def _replacement(self, match: regex.Match[str]) -> str:
        text, (start, end) = match.string, match.span()
        # A word that is problematic in part only is not a problematic token.
        if start and _is_word(text[start - 1]):
            while start < end and _is_word(text[start]):
                start += 1
        if end < len(text) and _is_word(text[end]):
            while end > start and _is_word(text[end - 1]):
                end -= 1
        while start < end and text[start].isspace():
            start += 1
        while end > start and text[end - 1].isspace():
            end -= 1
        return text[match.start() : start] + self._cut(text, start, end) + text[end : match.end()]

    def _cut(self, text: str, start: int, end: int) -> str:
        """What stays of a run of whole tokens."""
        run, limit = text[start:end], self._rules.min_characters
        if self._rules.counted == "token":
            return _TOKEN.sub(lambda token: "" if len(token[0]) >= limit and token[0] not in _FAMILY else token[0], run)
        if sum(not character.isspace() and character not in _FAMILY for character in run) < limit:
            return run
        return " ".join(text[place] for place in _lone_quotes(text, start, end))


def _lone_quotes(text: str, start: int, end: int) -> list[int]:
    """Places of the quotation marks in a run whose partner is not in it.

    The same mark opens in one language and closes in another, so its surroundings decide.
    """
    opening: list[int] = []
    closing: list[int] = []
    for place in (place for place in range(start, end) if text[place] in _FAMILY):
        before, behind = text[place - 1] if place else " ", text[place + 1 : place + 2]
        if (before.isspace() or before in _BEFORE_OPENING or before in _FAMILY) and behind and not behind.isspace():
            opening.append(place)
        elif (partner := next((mark for mark in reversed(opening) if _FAMILY[text[mark]] == _FAMILY[text[place]]), None)) is not None:
            opening.remove(partner)
        else:
            closing.append(place)
    return sorted(opening + closing)


_FAMILY = {mark: number for number, marks in enumerate(QUOTES) for mark in marks}
_BEFORE_OPENING = "([{-–—"
_TOKEN = regex.compile(r"[\w\p{M}]+|[^\w\s]")


def _is_word(character: str) -> bool:
    return _WORD.match(character) is not None


_WORD = regex.compile(r"[\w\p{M}]")
