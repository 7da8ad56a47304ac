"""HTML that was left in text: elements, comments, scripts and styles taken out, character references written out.

Only elements of HTML are taken for such: `<stdio.h>`, `a < b` and `<ime>` stay.  A text that only speaks of elements (press <q>) has none that
ends, and none with attributes; of such a text nothing is taken.
"""

from __future__ import annotations

import html
import re

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
