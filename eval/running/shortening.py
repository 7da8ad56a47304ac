"""Prompts that do not fit: examples go first, then the end of the article, so that instruction and question stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Span = Sequence[int]  # first character, and the one after the last


def shortened(prompt: str, cuts: Sequence[Span], fits: Callable[[str], bool]) -> str | None:
    """A prompt without as little as needed of what may be left out; None if it does not fit even without all of that.

    Args:
        cuts: what may be left out, in this order: each wholly, but of the last one only as much of its end as needed.
    """
    for count in range(1, len(cuts)):
        if fits(shorter := _without(prompt, cuts[:count])):
            return shorter
    if not cuts:
        return None
    *others, (start, end) = cuts
    kept, most = -1, end - start  # the most characters of the last one that fit, by bisection: fewer characters, fewer tokens
    while kept < most:
        middle = (kept + most + 1) // 2
        if fits(_without(prompt, [*others, (start + middle, end)])):
            kept = middle
        else:
            most = middle - 1
    return None if kept < 0 else _without(prompt, [*others, (start + kept, end)])


def _without(text: str, spans: Sequence[Span]) -> str:
    for start, end in sorted(map(tuple, spans), reverse=True):
        text = text[:start] + text[end:]
    return text
