"""Text as deduplication compares it: ignored differences are removed before hashing.

Paragraphs stay where they are: a line with text in it stays a line with text in it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

IGNORABLE = ("case", "punctuation", "unicode-form")
_MARK = re.compile(r"[^\w\s]|_")


class Comparison:
    """How texts are compared.

    Args:
        ignore: of `IGNORABLE`: `case`; `punctuation` (all that is neither letter, digit nor white space); `unicode-form` (NFC).
        marks_apart: punctuation marks are tokens of their own, as in the vertical files that onion reads; otherwise a token is
            what stands between white space.

    Raises:
        ValueError: for something else to ignore, or for marks that are both ignored and tokens.
    """

    def __init__(self, ignore: Iterable[str] = (), *, marks_apart: bool = False) -> None:
        self.ignore = frozenset(ignore)
        self.marks_apart = marks_apart
        if unknown := self.ignore - set(IGNORABLE):
            raise ValueError(f"--ignore does not know {', '.join(sorted(unknown))}; it knows {', '.join(IGNORABLE)}")
        if marks_apart and "punctuation" in self.ignore:
            raise ValueError("--marks-apart and --ignore punctuation exclude each other")

    @property
    def is_exact(self) -> bool:
        """Whether texts are compared as they are."""
        return not self.ignore and not self.marks_apart

    def prepared(self, text: bytes, offsets: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
        """Texts in UTF-8 one behind the other, and `offsets` (num_texts + 1,) of them, to be hashed."""
        if self.is_exact:
            return text, offsets
        texts = [self.prepare(text[start:end].decode()).encode() for start, end in pairwise(offsets.tolist())]
        return b"".join(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64)

    def prepare(self, text: str) -> str:
        """The text to be hashed."""
        if "unicode-form" in self.ignore:
            text = unicodedata.normalize("NFC", text)
        if "case" in self.ignore:
            text = text.casefold()
        if self.marks_apart:
            text = _MARK.sub(r" \g<0> ", text)
        if "punctuation" in self.ignore:
            text = "\n".join(_without_marks(line) for line in text.split("\n"))
        return text


def _without_marks(line: str) -> str:
    stripped = _MARK.sub("", line)
    return stripped if stripped.strip() else line
