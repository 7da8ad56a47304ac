"""Which language a text is in, by py3langid: 97 languages, a model of 0.7 MB inside the package, no other dependency than numpy.

Its answer depends on nothing but the text.  Language and script are two questions: the model knows Serbian in Cyrillic only and calls the same
sentences in Latin script Croatian, as it tells languages that are written alike apart by little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from data_prep.cleaning.scripts import script_of_letter

_CHARACTERS = 2000  # of a text are looked at, from its beginning
# Languages of which one is taken for the other, with the scripts that each is written in.
_CLOSE = ({"bs": ("Latin", "Cyrillic"), "cnr": ("Latin", "Cyrillic"), "hr": ("Latin",), "sr": ("Latin", "Cyrillic")},)
_SCRIPTS = {
    "Arab": "Arabic", "Armn": "Armenian", "Beng": "Bengali", "Cyrl": "Cyrillic", "Deva": "Devanagari", "Ethi": "Ethiopic", "Geor": "Georgian",
    "Grek": "Greek", "Gujr": "Gujarati", "Hang": "Hangul", "Hani": "Han", "Hebr": "Hebrew", "Latn": "Latin", "Sinh": "Sinhala", "Taml": "Tamil",
    "Telu": "Telugu", "Thai": "Thai",
}  # fmt: skip
TOGETHER, APART = CLOSE_LANGUAGES = ("together", "apart")


class LanguageFilter:
    """Says whether a text is in one of some languages.

    Args:
        languages: ISO 639-1 codes, with a script behind a dash (sr-Latn) where only that will do.
        min_score: probability that the language must have; a text below it is of no language.
        close_languages: `together`: languages that are taken for each other count as one, whose probability is the sum of theirs, in the
            scripts of the language that was asked for; `apart`: the answer of the model as it is, in any script.

    Raises:
        ValueError: if py3langid does not know a language, or a script is unknown.
    """

    def __init__(self, languages: Sequence[str], min_score: float = 0.5, *, close_languages: str = TOGETHER) -> None:
        if not 0 <= min_score <= 1:
            raise ValueError(f"--min-language-score is {min_score:g}; expected a probability from 0 to 1")
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._identifier = LanguageIdentifier.from_pickled_model(MODEL_FILE, norm_probs=True)
        known = {str(label) for label in self._identifier.nb_classes}
        self._min_score = min_score
        # What was asked for, the labels that count as that, and its scripts if not any.
        self._wanted: list[tuple[str, frozenset[str], tuple[str, ...]]] = []
        for asked in languages:
            language, _, script = asked.partition("-")
            group = next((group for group in _CLOSE if language in group and close_languages == TOGETHER), {language: ()})
            if not known & set(group):
                raise ValueError(f"--language {asked} is unknown; the known ones are {', '.join(sorted(known))}")
            if script and script not in _SCRIPTS:
                raise ValueError(f"--language {asked} names an unknown script; the known ones are {', '.join(_SCRIPTS)}")
            self._wanted.append((asked, frozenset(group), (_SCRIPTS[script],) if script else group[language]))

    def found(self, text: str) -> tuple[str, float]:
        """The most probable language and its probability."""
        language, score = self._identifier.classify(text[:_CHARACTERS])
        return str(language), float(score)

    def refuses(self, text: str) -> str | None:
        """Why the text does not pass: the language found, and its script where that is why; None where it passes."""
        return self.judge(text)[1]

    def judge(self, text: str) -> tuple[str | None, str | None]:
        """The language that was asked for and the text is in, and None; or None, and why the text is in none of them."""
        text = text[:_CHARACTERS]
        scores = {str(language): float(score) for language, score in self._identifier.rank(text)}
        best = max(scores, key=lambda language: scores[language])
        in_language = [
            (asked, scripts)
            for asked, labels, scripts in self._wanted
            if best in labels and sum(scores.get(label, 0.0) for label in labels) >= self._min_score
        ]
        if not in_language:
            return None, f"{best} {scores[best]:.2f}"
        script = _script_of(text) if any(scripts for _, scripts in in_language) else ""
        for asked, scripts in in_language:
            if not scripts or script in scripts:
                return asked, None
        return None, f"{best} {scores[best]:.2f} in {script} script"


def _script_of(text: str) -> str:
    """The script of most letters; `no` of a text without any."""
    counts = Counter(script_of_letter(character) for character in text if character.isalpha())
    return counts.most_common(1)[0][0] if counts else "no"
