"""Which language a text is in, by py3langid: 97 languages, a model of 0.7 MB inside the package, no other dependency than numpy.

Its answer depends on nothing but the text.
"""

from __future__ import annotations

from collections.abc import Sequence

_CHARACTERS = 2000  # of a text are looked at, from its beginning


class LanguageFilter:
    """Says whether a text is in one of some languages.

    Args:
        languages: ISO 639-1 codes.
        min_score: probability that the best language must have; a text below it is of no language.

    Raises:
        ValueError: if py3langid does not know a language.
    """

    def __init__(self, languages: Sequence[str], min_score: float = 0.5) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self._identifier = LanguageIdentifier.from_pickled_model(MODEL_FILE, norm_probs=True)
        known = {str(label) for label in self._identifier.nb_classes}
        if unknown := sorted(set(languages) - known):
            raise ValueError(f"--language {' '.join(unknown)} is unknown; the known ones are {', '.join(sorted(known))}")
        self._languages = frozenset(languages)
        self._min_score = min_score

    def found(self, text: str) -> tuple[str, float]:
        """The most probable language and its probability."""
        language, score = self._identifier.classify(text[:_CHARACTERS])
        return str(language), float(score)

    def refuses(self, text: str) -> str | None:
        """Why the text does not pass: the language found, None where it passes."""
        language, score = self.found(text)
        if language in self._languages and score >= self._min_score:
            return None
        return f"{language} {score:.2f}"
