"""Vertical files of corpus managers and onion: one token per line, tags for documents, paragraphs and sentences.

The form of a token is what stands before the first tab.  Tokens are joined by a space, except where `<g/>` (glue) stands between them; paragraphs
(`<p>`) become lines.  The document is the first of `<doc>` and `<text>` that the file has, its attributes (`id`, `title` ...) are the
document's fields.  Other tags (`<s>`, `<name>`) only part tokens.  A prevert file (MaCoCu) is the same before it was cut into tokens: lines of text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_TAG = re.compile(r"<(/?)([A-Za-z][\w.:-]*)((?:\s+[\w.:-]+\s*=\s*\"[^\"]*\")*)\s*(/?)>\s*")
_ATTRIBUTE = re.compile(r"([\w.:-]+)\s*=\s*\"([^\"]*)\"")
_DOCUMENTS = ("doc", "text")


@dataclass
class _Text:
    """The text of a document so far."""

    line: int
    fields: dict[str, str]
    parts: list[str] = field(default_factory=list)
    size: int = 0
    glued: bool = True  # at the beginning of a line nothing is put before a token
    dropped: bool = False  # too long: read to its end, and nothing kept

    def add(self, token: str) -> None:
        if not self.glued:
            self.parts.append(" ")
        self.parts.append(token)
        self.size += len(token) + 1
        self.glued = False

    def end_line(self) -> None:
        if self.parts and self.parts[-1] != "\n":
            self.parts.append("\n")
        self.glued = True

    def whole(self) -> tuple[str, int, dict[str, str]]:
        return "".join(self.parts).rstrip("\n"), self.line, self.fields


def vertical_documents(
    path: Path,
    lines: Iterator[tuple[int, str]],
    max_bytes: int | None,
    bad: Callable[[int, str, str], None],
    *,
    has_columns: bool = True,
) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Yield the text, first line and fields of each document.

    Args:
        lines: with their numbers.
        bad: told of tokens outside of any document, of a document that does not end, or that is longer than `max_bytes`.
        has_columns: a token is what stands before the first tab; a line of text may have tabs of its own.
    """
    element = ""
    current: _Text | None = None
    for number, line in lines:
        tag = _TAG.fullmatch(line) if line.startswith("<") else None
        if tag is None:
            if not line.strip():
                continue
            if current is None:
                bad(number, "no document", f"{path}, line {number} is a token outside of any document; expected <doc> or <text> before it")
                continue
            if current.dropped:
                continue
            current.add(html.unescape(line.partition("\t")[0] if has_columns else line.strip()))
            if max_bytes is not None and current.size > max_bytes:
                bad(current.line, "too long", _too_long(path, current.line, max_bytes))
                current = _Text(current.line, {}, dropped=True)
            continue
        is_end, name, attributes, is_empty = tag.groups()
        if not element and name in _DOCUMENTS:
            element = name
        if name == element:
            if is_end or not is_empty:
                if current is not None and not is_end:
                    bad(current.line, "no end", _no_end(path, current.line, element))
                elif current is not None and not current.dropped:
                    yield current.whole()
                fields = {key: html.unescape(value) for key, value in _ATTRIBUTE.findall(attributes)}
                current = None if is_end else _Text(number, fields)
        elif current is not None and name == "p":
            current.end_line()
        elif current is not None and name == "g":
            current.glued = True
    if current is not None:
        bad(current.line, "no end", _no_end(path, current.line, element))


def _no_end(path: Path, line: int, element: str) -> str:
    return f"{path}: the document that begins at line {line} has no </{element}>; the file is cut off or broken, copy it again"


def _too_long(path: Path, line: int, limit: int) -> str:
    return (
        f"{path}, line {line}: the document that begins there is longer than {limit / 2**20:g} MiB; split it, or allow more with"
        " --max-document-mib"
    )
