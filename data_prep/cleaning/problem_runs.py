"""Runs of problematic characters removed: the heuristic that GaMS used on KAS, theses read from PDF (Vreš et al. 2024, section 3).

A token of nothing but problematic characters is a problematic token; a run of such tokens goes if their characters, white space not counted,
are at least 5.  The paper leaves open what this module makes options of: which letters are the language's own (both cases, here),
whether letters of other alphabets are problematic, whether typographic marks are, and whether the 5 are of the run or of
each token.  A token is a word (letters, digits, marks joined to them) or a single other character; the paper's NLTK
tokens differ from these only at marks beside ASCII, which are in no run either way.
"""

from __future__ import annotations

from dataclasses import dataclass

import regex

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
COUNTED = ("run", "token")


@dataclass(frozen=True)
class ProblemRuns:
    """What a problematic run is.

    Attributes:
        language: whose letters are not problematic, of `LETTERS`; ASCII never is.
        allowed: further characters that are not.
        other_alphabets: whether letters of other alphabets than the Latin one are problematic (GaMS's text can be read both ways).
        typography: whether typographic quotes, dashes, currency signs and the like are.
        min_characters: how many make a run go.
        counted: what has so many: the whole `run`, or each `token`, in which case only such tokens go.

    Raises:
        ValueError: if the language is unknown.
    """

    language: str
    allowed: str = ""
    other_alphabets: bool = True
    typography: bool = True
    min_characters: int = 5
    counted: str = "run"

    def __post_init__(self) -> None:
        if self.language not in LETTERS:
            raise ValueError(
                f"--problem-runs knows no language {self.language!r}, only {', '.join(LETTERS)};"
                " take en and name the language's letters with --allow-characters"
            )
        if self.min_characters < 1:
            raise ValueError(f"--problem-run-length is {self.min_characters}; expected at least 1")
        if self.counted not in COUNTED:
            raise ValueError(f"unknown --problem-run-counts {self.counted!r}; the known ones are {', '.join(COUNTED)}")

    def remover(self) -> ProblemRunRemover:
        """A step of cleaning that takes them out."""
        return ProblemRunRemover(self)


class ProblemRunRemover:
    """Takes problematic runs out of text; line ends within a run stay."""

    def __init__(self, rules: ProblemRuns) -> None:
        letters = LETTERS[rules.language] + rules.allowed
        allowed = regex.escape("".join(sorted({*letters, *letters.upper(), *("" if rules.typography else TYPOGRAPHY)})), special_only=False)
        problem = f"[^\\x00-\\x7F\\s{allowed}]"
        if not rules.other_alphabets:
            problem = f"[{problem}--[\\p{{L}}--\\p{{Latin}}]]"
        self._rules = rules
        self._any = regex.compile(problem, regex.V1)
        self._stretch = regex.compile(f"{problem}(?:\\s*{problem})*", regex.V1)

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
        run = text[start:end]
        return text[match.start() : start] + self._cut(run) + text[end : match.end()]

    def _cut(self, run: str) -> str:
        limit = self._rules.min_characters
        if self._rules.counted == "token":
            return _TOKEN.sub(lambda token: "" if len(token[0]) >= limit else token[0], run)
        if sum(not character.isspace() for character in run) < limit:
            return run
        return "\n" * run.count("\n")


_TOKEN = regex.compile(r"[\w\p{M}]+|[^\w\s]")


def _is_word(character: str) -> bool:
    return _WORD.match(character) is not None


_WORD = regex.compile(r"[\w\p{M}]")
