"""Unicode and white-space hygiene: small repairs of text, each by itself, so that each can be counted.

Joiners (U+200C, U+200D) stay: Persian and Indic words and emoji are spelled with them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

Step = Callable[[str], str]
FLATTEN, KEEP = LAYOUTS = ("flatten", "keep")

LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
# Zero-width space, word joiner, byte-order mark, soft hyphen, marks and embeddings of writing direction.
INVISIBLE = re.compile("[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
SPACES = re.compile("[\t\x1c-\x1f\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_SPACES_BUT_TAB = re.compile("[\x1c-\x1f\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_LINE_REST = re.compile("[ \t]+$", re.MULTILINE)
_RUN = re.compile(" {2,}")
_AROUND_LINE_END = re.compile(" *\n *")
_EMPTY_LINES = re.compile("\n{3,}")


def line_ends(text: str) -> str:
    """One line feed for each kind of line end (Windows, old Mac, form feed, Unicode)."""
    return LINE_ENDS.sub("\n", text)


def control_characters(text: str) -> str:
    """No control characters but tab and line feed: NUL, C0, C1, and code points that are no characters."""
    return CONTROL.sub("", text)


def invisible_characters(text: str) -> str:
    """No characters without width or meaning in plain text."""
    return INVISIBLE.sub("", text)


def unicode_form(text: str) -> str:
    """Composed characters (NFC)."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def white_space(text: str) -> str:
    """One space between words, none at the ends of lines, at most one empty line, none at the ends of the text."""
    text = SPACES.sub(" ", text)
    if "  " in text:
        text = _RUN.sub(" ", text)
    if " \n" in text or "\n " in text:
        text = _AROUND_LINE_END.sub("\n", text)
    if "\n\n\n" in text:
        text = _EMPTY_LINES.sub("\n\n", text)
    return text.strip(" \n")


def white_space_with_layout(text: str) -> str:
    """Indentation, columns and empty lines as they are; no white space at the ends of lines, no empty lines at the ends of the text."""
    text = _SPACES_BUT_TAB.sub(" ", text)
    text = _LINE_REST.sub("", text)
    return text.strip("\n") if text.strip() else ""


# In this order: line ends are control characters too, and removed characters leave spaces behind.
BEFORE: dict[str, Step] = {
    "line ends": line_ends,
    "control characters": control_characters,
    "invisible characters": invisible_characters,
    "unicode form": unicode_form,
}
AFTER: dict[str, Step] = {"white space": white_space}
AFTER_WITH_LAYOUT: dict[str, Step] = {"white space": white_space_with_layout}
