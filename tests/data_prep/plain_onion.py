"""Onion as one would write it in an afternoon: tuples of words in a set, one text, no hashes.  The tests' reference."""

from __future__ import annotations

from dataclasses import dataclass

from data_prep.deduplication.onion_types import OnionSettings


@dataclass
class Paragraph:
    words: list[str]
    removed: bool = False


def paragraphs_of(text: str, unit: str) -> list[Paragraph]:
    if unit == "document":
        blocks = [text]
    elif unit == "line":
        blocks = text.split("\n")
    else:
        blocks, block = [], ""
        for line in text.split("\n"):
            if line.strip():
                block += line + "\n"
            else:
                blocks.append(block)
                block = ""
        blocks.append(block)
    return [Paragraph(block.split()) for block in blocks if block.split()]


def plain_onion(texts: list[str], settings: OnionSettings) -> list[list[bool]]:
    """For each document, whether each of its paragraphs is removed."""
    n, seen = settings.n, set()
    result = []
    for text in texts:
        paragraphs = paragraphs_of(text, settings.paragraphs)
        words = [word for paragraph in paragraphs for word in paragraph.words]
        ngram_at = [tuple(words[i - n + 1 : i + 1]) if i >= n - 1 else None for i in range(len(words))]
        here: set[tuple[str, ...]] = set()
        start = 0
        for paragraph in paragraphs:
            end = start + len(paragraph.words)
            covered, bad, possible = set(), 0, 0
            for i in range(start, end):
                ngram = ngram_at[i]
                if ngram is None:
                    continue
                possible += 1
                if ngram in seen or (settings.within_document and ngram in here):
                    bad += 1
                    covered |= {j for j in range(i - n + 1, i + 1) if j >= start}
                here.add(ngram)
            share = (bad / possible if possible else 0.0) if settings.score == "ngrams" else len(covered) / len(paragraph.words)
            paragraph.removed = bad > 0 and (share >= settings.threshold if settings.boundary == "reaches" else share > settings.threshold)
            start = end
        smooth(paragraphs, settings)
        left = sum(len(paragraph.words) for paragraph in paragraphs if not paragraph.removed)
        if any(paragraph.removed for paragraph in paragraphs) and left < settings.min_kept_tokens:
            for paragraph in paragraphs:
                paragraph.removed = True
        start = 0
        for paragraph in paragraphs:
            end = start + len(paragraph.words)
            if not paragraph.removed:
                seen |= {ngram for ngram in ngram_at[start:end] if ngram is not None}
            start = end
        result.append([paragraph.removed for paragraph in paragraphs])
    return result


def smooth(paragraphs: list[Paragraph], settings: OnionSettings) -> None:
    if settings.smoothing == "none":
        return
    was_removed = [paragraph.removed for paragraph in paragraphs]
    outside = settings.smoothing == "onion"
    for i, paragraph in enumerate(paragraphs):
        if was_removed[i]:
            continue
        first = last = i
        while first > 0 and not was_removed[first - 1]:
            first -= 1
        while last + 1 < len(paragraphs) and not was_removed[last + 1]:
            last += 1
        closed = (first > 0 or outside) and (last + 1 < len(paragraphs) or outside)
        if closed and sum(len(p.words) for p in paragraphs[first : last + 1]) <= settings.max_stub_tokens:
            paragraph.removed = True
