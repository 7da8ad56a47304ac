"""The loops of onion.c in Python and numpy: the same output without a compiler.

Hashes are the same as in C, so that what either finds can be compared bit by bit; memory and time are Python's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from data_prep.deduplication.onion_types import KEPT, NEAR_DUPLICATE, STUB, Decisions, OnionSettings, Scan

_MULTIPLIER = 0x9E3779B97F4A7C15
_BASE = 0xD6E8FEB86659FD93
_MASK = (1 << 64) - 1
_NONE = (1 << 32) - 1  # no paragraph
_MAX_CACHED_WORDS = 1 << 20
_TOKEN = re.compile(r"\S+")  # the white space of str.split()


def finish(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix all bits of each value, of any shape; never 0, which says that there is no n-gram."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return np.where(values == 0, np.uint64(1), values)


class PlainEngine:
    """What onion.c does, with dictionaries for tables."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}

    def scan(self, documents: list[bytes], settings: OnionSettings) -> Scan:
        """See `data_prep.deduplication.onion.Engine.scan`."""
        token_hashes: list[int] = []
        paragraph_token: list[int] = []
        paragraph_byte: list[int] = []
        document_paragraph = [0]
        document_token = [0]
        start = 0
        for document in documents:
            text = document.decode()
            for first_byte, words in _paragraphs(text, settings.newlines):
                paragraph_token.append(len(token_hashes))
                paragraph_byte.append(start + first_byte)
                token_hashes.extend(map(self._word_hash, words))
            document_paragraph.append(len(paragraph_token))
            document_token.append(len(token_hashes))
            start += len(document)
        tokens = np.array(token_hashes, dtype=np.uint64)
        return Scan(
            hashes=ngram_hashes(tokens, document_token, settings.n),
            paragraph_token=np.array(paragraph_token, dtype=np.int64),
            paragraph_byte=np.array(paragraph_byte, dtype=np.int64),
            paragraph_hash=_paragraph_hashes(tokens, paragraph_token),
            document_paragraph=np.array(document_paragraph, dtype=np.int64),
        )

    def scan_joined(self, text: bytes, offsets: NDArray[np.int64], settings: OnionSettings) -> Scan:
        """See `data_prep.deduplication.onion.Engine.scan_joined`."""
        return self.scan([text[start:end] for start, end in pairwise(offsets.tolist())], settings)

    def _word_hash(self, word: str) -> int:
        known = self._words.get(word)
        if known is None:
            data = word.encode()
            value = 0
            for at in range(0, len(data), 8):
                value = ((value ^ int.from_bytes(data[at : at + 8], "little")) * _MULTIPLIER) & _MASK
                value ^= value >> 32
            value ^= (len(data) << 56) & _MASK
            known = int(finish(np.array([value], dtype=np.uint64))[0])
            if len(self._words) >= _MAX_CACHED_WORDS:
                self._words.clear()
            self._words[word] = known
        return known

    def apply(
        self,
        sources: NDArray[np.uint32],
        paragraph_token: NDArray[np.int64],
        document_paragraph: NDArray[np.int64],
        settings: OnionSettings,
        decisions: Decisions,
    ) -> None:
        """See `data_prep.deduplication.onion.Engine.apply`."""
        token = [*paragraph_token.tolist(), len(sources)]
        documents = document_paragraph.tolist()
        for first, last in zip(documents, documents[1:]):
            for p in range(first, last):
                found: Counter[int] = Counter()
                uncovered = covered = 0
                for source in sources[token[p] : token[p + 1]].tolist():
                    uncovered = min(uncovered + 1, settings.n)
                    if source != _NONE:
                        covered += uncovered
                        uncovered = 0
                        found[source] += 1
                _judge(decisions, p, found, covered, token, token[first], settings)
            _remove_stubs(first, last, token, settings, decisions.verdict)

    def table(self) -> PlainTable:
        """A new table of seen n-grams."""
        return PlainTable()


class PlainTable:
    """Hash -> the paragraph that brought it, and the decisions over it."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def reserve(self, num_ngrams: int) -> None:
        """Nothing: a dictionary grows by itself."""

    def first(self, hashes: NDArray[np.uint64], values: NDArray[np.uint32], none: int) -> NDArray[np.uint32]:
        """See `data_prep.deduplication.onion.Table.first`."""
        result = np.full(len(hashes), none, dtype=np.uint32)
        for at, (key, value) in enumerate(zip(hashes.tolist(), values.tolist())):
            if key in self._seen:
                result[at] = self._seen[key]
            elif key:
                self._seen[key] = value
        return result

    def decide(self, scan: Scan, settings: OnionSettings, first_ordinal: int, decisions: Decisions) -> None:
        """See `data_prep.deduplication.onion.Table.decide`."""
        hashes = scan.hashes.tolist()
        token = [*scan.paragraph_token.tolist(), len(hashes)]
        documents = scan.document_paragraph.tolist()
        for first, last in zip(documents, documents[1:]):
            local: dict[int, int] = {}
            for p in range(first, last):
                keys = hashes[token[p] : token[p + 1]]
                sources, covered = self._repeats(keys, first_ordinal + p, local, settings)
                _judge(decisions, p, sources, covered, token, token[first], settings)
            _remove_stubs(first, last, token, settings, decisions.verdict)
            for p in range(first, last):
                if decisions.verdict[p] == KEPT:
                    for key in hashes[token[p] : token[p + 1]]:
                        if key:
                            self._seen.setdefault(key, first_ordinal + p)

    def _repeats(self, keys: list[int], ordinal: int, local: dict[int, int], settings: OnionSettings) -> tuple[Counter[int], int]:
        """Where the seen n-grams of a paragraph come from, and how many of its tokens they cover."""
        sources: Counter[int] = Counter()
        uncovered = covered = 0
        for key in keys:
            uncovered = min(uncovered + 1, settings.n)
            if not key:
                continue
            source = self._seen.get(key)
            if settings.within_document:
                earlier = local.setdefault(key, -1)
                if earlier < 0:
                    local[key] = ordinal
                elif source is None:
                    source = earlier
            if source is not None:
                covered += uncovered
                uncovered = 0
                sources[source] += 1
        return sources, covered


def _judge(
    decisions: Decisions, p: int, sources: Counter[int], covered: int, token: list[int], begin: int, settings: OnionSettings
) -> None:
    """Decide on paragraph p of a document that begins at token `begin`."""
    repeated, num_tokens = sources.total(), token[p + 1] - token[p]
    ngrams = max(0, num_tokens - max(0, settings.n - 1 - (token[p] - begin)))
    decisions.covered[p], decisions.repeated[p], decisions.possible[p] = covered, repeated, ngrams
    if not repeated:
        return
    source, times = min(sources.items(), key=lambda item: (-item[1], item[0]))
    decisions.source[p], decisions.source_ngrams[p] = source, times
    score = repeated / ngrams if settings.score == "ngrams" else covered / num_tokens
    removed = score > settings.threshold or (settings.boundary == "reaches" and score == settings.threshold)
    if removed and decisions.verdict[p] == KEPT:
        decisions.verdict[p] = NEAR_DUPLICATE


def _remove_stubs(first: int, last: int, token: list[int], settings: OnionSettings, verdict: NDArray[np.uint8]) -> None:
    _smooth(first, last, token, settings, verdict)
    _drop_stub(first, last, token, settings.min_kept_tokens, verdict)


def _smooth(first: int, last: int, token: list[int], settings: OnionSettings, verdict: NDArray[np.uint8]) -> None:
    """Remove short stretches of kept paragraphs; see `OnionSettings.smoothing`."""
    if settings.smoothing == "none":
        return
    edges_count = settings.smoothing == "onion"
    removed = [p for p in range(first, last) if verdict[p] != KEPT]
    borders = [first - 1, *removed, last] if edges_count else removed
    for before, after in zip(borders, borders[1:]):
        if token[after] - token[before + 1] <= settings.max_stub_tokens:
            verdict[before + 1 : after] = STUB


def _drop_stub(first: int, last: int, token: list[int], min_kept_tokens: int, verdict: NDArray[np.uint8]) -> None:
    """Remove what is left of a document; see `OnionSettings.min_kept_tokens`."""
    kept = [p for p in range(first, last) if verdict[p] == KEPT]
    if len(kept) < last - first and sum(token[p + 1] - token[p] for p in kept) < min_kept_tokens:
        verdict[kept] = STUB


def _paragraphs(text: str, newlines: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the byte where each paragraph's first line begins and its tokens."""
    words: list[str] = []
    paragraph_start = end = 0
    for match in _TOKEN.finditer(text):
        between = text[end : match.start()]
        if words and between.count("\n") >= newlines:
            yield len(text[:paragraph_start].encode()), words
            words = []
            paragraph_start = end + between.rfind("\n") + 1
        words.append(match[0])
        end = match.end()
    if words:
        yield len(text[:paragraph_start].encode()), words


def ngram_hashes(tokens: NDArray[np.uint64], document_token: list[int], n: int) -> NDArray[np.uint64]:
    """(num_tokens,) the hash of the n-gram that ends at each token, 0 for the first n - 1 of a document.

    Args:
        tokens: (num_tokens,) hash of each.
        document_token: first token of each document.
    """
    window = np.zeros(len(tokens), dtype=np.uint64)
    for back in range(n if n <= len(tokens) else 0):
        window[n - 1 :] += tokens[n - 1 - back : len(tokens) - back] * np.uint64(pow(_BASE, back, 1 << 64))
    hashes = finish(window)
    for start in document_token:
        hashes[start : start + n - 1] = 0
    return hashes


def _paragraph_hashes(tokens: NDArray[np.uint64], paragraph_token: list[int]) -> NDArray[np.uint64]:
    values = []
    for start, end in zip(paragraph_token, [*paragraph_token[1:], len(tokens)]):
        value = 0
        for token in tokens[start:end].tolist():
            value = (value * _BASE + token) & _MASK
        values.append(value)
    return finish(np.array(values, dtype=np.uint64))
