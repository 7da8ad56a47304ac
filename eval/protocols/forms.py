"""Which answer a generated text gives, or none: an answer that has not the form asked for is invalid, which is not the same as wrong."""

from __future__ import annotations

import re

# A label counts only as a whole word: `Danes` is no `Da`, `12` is no `1`.
_FORMS = {
    "yes_no": re.compile(r"\s*(da|ne)\b", re.IGNORECASE),
    "one_two": re.compile(r"\s*(?:hipoteza\s*)?([12])\b", re.IGNORECASE),
    "holds": re.compile(r"\s*(drži|ne\s+drži)\b", re.IGNORECASE),
    "holds_or_unknown": re.compile(r"\s*(drži|ne\s+drži|ne\s+vemo)\b", re.IGNORECASE),
    "inference": re.compile(r"\s*(sosledje|nevtralnost|nasprotovanje)\b", re.IGNORECASE),
}
LABELS = {
    "yes_no": ("da", "ne"),
    "one_two": ("1", "2"),
    "holds": ("drži", "ne drži"),
    "holds_or_unknown": ("drži", "ne drži", "ne vemo"),
    "inference": ("sosledje", "nevtralnost", "nasprotovanje"),
}
# Three digits at most: no set has more answers, and a model may write a number of any length.
_NUMBERS = re.compile(r"\s*(?:pravilni[^:\n]*:)?\s*(\d{1,3}(?:\s*,\s*\d{1,3})*)(?![\d])", re.IGNORECASE)


def read_label(text: str, form: str) -> int | None:
    """Index of the label that a text begins with, in any case; None if it begins with none."""
    match = _FORMS[form].match(text)
    return None if match is None else LABELS[form].index(" ".join(match.group(1).lower().split()))


def read_numbers(text: str, *, highest: int) -> set[int] | None:
    """Numbers that a text begins with, separated by commas; None if there are none or one of them is not between 1 and `highest`."""
    match = _NUMBERS.match(text)
    if match is None:
        return None
    numbers = {int(number) for number in match.group(1).split(",")}
    return numbers if all(1 <= number <= highest for number in numbers) else None
