"""Sentences sampled evenly from a text, and disjoint held-out ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+")
_HELD_OUT_EVERY = 20
_MOST_HELD_OUT = 5_000


def sentences(texts: Iterable[str]) -> Iterator[str]:
    """Cut texts at line breaks and after full stops, question and exclamation marks."""
    for text in texts:
        for sentence in _SENTENCE_END.split(text):
            if sentence and not sentence.isspace():
                yield sentence


def sample_sentences(texts: Iterable[str], num_sentences: int) -> tuple[list[str], list[str]]:
    """So many sentences at even distances over the whole text, or all of them, and up to 5,000 held-out ones.

    Every twentieth sentence is held out.

    Args:
        texts: read twice.

    Returns:
        The sample, the held-out sentences; each in the order of the text.
    """
    total = sum(1 for _ in sentences(texts))
    num_held_out = -(-total // _HELD_OUT_EVERY)
    sample: list[str] = []
    held_out: list[str] = []
    seen = seen_held_out = 0
    for place, sentence in enumerate(sentences(texts)):
        if place % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1:
            if seen_held_out * _MOST_HELD_OUT // num_held_out >= len(held_out):
                held_out.append(sentence)
            seen_held_out += 1
        else:
            if seen * num_sentences // (total - total // _HELD_OUT_EVERY) >= len(sample):
                sample.append(sentence)
            seen += 1
    return sample, held_out
