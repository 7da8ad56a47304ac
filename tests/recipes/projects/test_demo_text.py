"""The shipped text is clean, and its held-out part is really held out."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

TEXT = Path(__file__).parents[3] / "recipes" / "demo_text"


def _documents(language: str, part: str) -> list[str]:
    text = (TEXT / f"{language}.{part}.txt").read_bytes().decode("utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


def _sentences(documents: list[str]) -> list[str]:
    # A capital after the stop: "10.", "ob 22.15" and "Mr." end no sentence.
    split = re.compile(r"""(?<=[.!?»"])(?<!Mr\.)(?<!Mrs\.)\s+(?=[»"A-ZČŠŽ])""")
    return [sentence.strip('»«" ').lower() for document in documents for sentence in split.split(document)]


@pytest.mark.parametrize("language", ["en", "sl"])
@pytest.mark.parametrize("part", ["train", "heldout"])
def test_lines_are_clean(language: str, part: str) -> None:
    for document in _documents(language, part):
        assert document == " ".join(document.split()) and document
        assert document == unicodedata.normalize("NFC", document)


@pytest.mark.parametrize("language", ["en", "sl"])
def test_no_sentence_is_repeated_or_shared(language: str) -> None:
    # One repeated sentence across the parts and bits per byte measure memory.
    sentences = _sentences(_documents(language, "train") + _documents(language, "heldout"))
    assert len(sentences) > 1500
    assert [sentence for sentence, count in Counter(sentences).items() if count > 1] == []
