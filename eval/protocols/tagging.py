"""Labels of words scored as the papers score them: spans of names by the rules of seqeval, and right words.

seqeval reads the first letter of a label as its place in a span (B, I, E, S, or outside: O) and what follows as its kind; without a dash too,
so that parts of speech become spans of equal neighbours, SCONJ and CCONJ of one kind (CONJ).  XTREME, and OFA after it, call the F1 of
these spans the F1 of parts of speech; the accuracy of words stands beside it here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conversion.measuring.intervals import Floats

Labels = Sequence[str]
Span = tuple[str, int, int]  # kind, first and last word, counted over all sentences

_OUTSIDE = "O"


def spans(sentences: Sequence[Labels]) -> list[set[Span]]:
    """Spans that end in each sentence, as seqeval 1.2.2 finds them without its strict mode.

    Words are counted over all sentences, with one place between two of them, because seqeval does: after a sentence that begins with a label
    of one letter (X), its spans may begin where an earlier one did.
    """
    found: list[set[Span]] = [set() for _ in sentences]
    mark_before, kind_before, begin, place = _OUTSIDE, "", 0, 0
    for number, labels in enumerate(sentences):
        for label in (*labels, _OUTSIDE):
            mark, kind = label[0], label[1:].split("-", 1)[-1] or "_"
            if _ends(mark_before, mark, other_kind=kind != kind_before):
                found[number].add((kind_before, begin, place - 1))
            if _begins(mark_before, mark, other_kind=kind != kind_before):
                begin = place
            mark_before, kind_before, place = mark, kind, place + 1
    return found


def _ends(before: str, mark: str, *, other_kind: bool) -> bool:
    """Whether a span ends before a label."""
    return before in "ES" or (before in "BI" and mark in "BSO") or (before not in "O." and other_kind)


def _begins(before: str, mark: str, *, other_kind: bool) -> bool:
    """Whether a span begins with a label."""
    return mark in "BS" or (before in "ESO" and mark in "EI") or (mark not in "O." and other_kind)


def span_counts(gold: Sequence[Labels], predicted: Sequence[Labels]) -> Floats:
    """(sentences, 3): spans that are right, found and wanted.

    Raises:
        ValueError: if a sentence has more or fewer labels in one than in the other.
    """
    for number, (wanted, found) in enumerate(zip(gold, predicted, strict=True), start=1):
        if len(wanted) != len(found):
            raise ValueError(f"sentence {number} has {len(wanted)} words and {len(found)} predicted labels; expected one for each word")
    both = zip(spans(gold), spans(predicted), strict=True)
    return np.array([[len(wanted & found), len(found), len(wanted)] for wanted, found in both], dtype=float).reshape(-1, 3)


def f1_of_counts(counts: Floats) -> Floats:
    """F1 of summed counts, (corpora, 3) -> (corpora,); 0 where nothing is found nor wanted."""
    right, found, wanted = counts.T
    both = found + wanted
    f1: Floats = np.divide(2 * right, both, out=np.zeros(len(counts)), where=both > 0)
    return f1


def word_counts(gold: Sequence[Labels], predicted: Sequence[Labels]) -> Floats:
    """(sentences, 2): words with the right label, and words."""
    return np.array(
        [[sum(a == b for a, b in zip(wanted, found, strict=True)), len(wanted)] for wanted, found in zip(gold, predicted, strict=True)],
        dtype=float,
    ).reshape(-1, 2)
