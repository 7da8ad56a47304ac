"""Which script a token is written in, by the names that Unicode gives its characters."""

from __future__ import annotations

import unicodedata
from functools import cache

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
