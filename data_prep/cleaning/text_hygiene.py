"""Repairs of Unicode, white space and leftover HTML, each a separate function that is counted by itself.

Joiners (U+200C, U+200D) stay: Persian and Indic words and emoji are spelled with them.  Only elements of HTML are taken for such: `<stdio.h>`, `a < b`
and `<ime>` stay.  A text that only speaks of elements (press <q>) has none that ends, and none with attributes; of such a text nothing is taken.
"""

from __future__ import annotations

import html
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
    """No control characters but tab and line feed: NUL, C0, C1, and code points that are not characters."""
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


_BLOCKS = (
    "address article aside blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5"
    " h6 head header hr html legend li main menu nav ol optgroup option p pre section select summary table tbody td tfoot th thead title tr ul"
)
_INLINE = (
    "a abbr acronym applet area audio b base basefont bdi bdo big button canvas cite code col colgroup data datalist del dfn em embed font frame"
    " frameset i iframe img input ins kbd label link map mark meta meter noframes noscript object output param picture progress q rp rt ruby s samp"
    " script small source span strike strong style sub sup svg template textarea time track tt u var video wbr"
)
_HIDDEN = re.compile(
    r"<!--.*?-->|<!doctype[^<>]{0,200}>|\A\s*<\?xml[^<>]{0,200}\?>"
    r"|<(script|style|noscript|template|svg|head)\b[^<>]{0,2000}>.{0,200000}?</\1\s*>",
    re.IGNORECASE | re.DOTALL,
)
# An attribute may hold a bracket only in quotes, which is rare enough to leave.
_REST = r"(?:\s[^<>]{0,2000})?/?>"
_BLOCK = re.compile(rf"\s*</?(?:{'|'.join(_BLOCKS.split())}){_REST}\s*", re.IGNORECASE)
_ELEMENT = re.compile(rf"</?(?:{'|'.join(_INLINE.split())}){_REST}", re.IGNORECASE)
_EVIDENCE = re.compile(
    rf"</(?:{'|'.join((_BLOCKS + ' ' + _INLINE).split())})\s*>|<[a-z][a-z0-9]*\s+[a-z-]+\s*=|<br\s*/?>|<!--|<!doctype", re.IGNORECASE
)
_REFERENCE = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def without_markup(text: str) -> str:
    """The text without elements of HTML, a line feed where one of them ends a block."""
    if "<" in text and _EVIDENCE.search(text):
        text = _HIDDEN.sub(" ", text)
        text = _BLOCK.sub("\n", text)
        text = _ELEMENT.sub("", text)
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _character(reference: re.Match[str]) -> str:
    written = html.unescape(reference[0])
    # Numbers of no character and of half a surrogate pair become U+FFFD, names that are none stay.
    return "" if "\ufffd" in written else written
