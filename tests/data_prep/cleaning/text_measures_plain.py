"""The numbers of `text_measures` in plain Python, to hold the C to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from data_prep.cleaning.code_points import (
    BULLET,
    CLOSING,
    DIGIT,
    LETTER,
    SPACE,
    TABLE_SIZE,
    TERMINAL,
    UNSPACED,
    UPPER,
    folded,
    kinds,
)
from data_prep.cleaning.text_measures import Measures

_LINKS = ("http://", "https://", "www.")
_SHORT_LINE = 30


class PlainLoops:
    """Measures texts with the stop words of one language."""

    def __init__(self, stop_words: Set[str]) -> None:
        self._stop_words = stop_words
        self._kinds = kinds().tolist()

    def measure(self, text: str) -> Measures:
        """See `data_prep.cleaning.text_measures.Measurer.measure`."""
        lines = [line for line in map(self._stripped, text.split("\n")) if line]
        tokens = [token for line in lines for token in self._tokens(line)]
        cores = [core for core in map(self._core, tokens) if core]
        visible = [character for token in tokens for character in token]
        letters = sum(self._is(c, LETTER) for c in visible)
        stop_words = sum(folded(core) in self._stop_words for core in cores)
        ellipses = text.count("…") + sum(len(run) >= 3 for run in _runs_of_dots(text))
        holes = visible.count("\ufffd")
        paragraphs = self._paragraphs(text)
        repeated = [_repeated(lines, [len(line) for line in lines]), _repeated(paragraphs, [sum(map(len, lines)) for lines in paragraphs])]
        return Measures(
            len(text),
            len(cores),
            len(lines),
            sum(self._ends_sentence(token) for token in tokens),
            _share(sum(map(len, cores)), len(cores)),
            max(map(len, cores), default=0),
            _share(sum(any(self._is(c, LETTER) for c in token) for token in tokens), len(cores)),
            stop_words,
            _share(stop_words, len(cores)),
            _share(visible.count("#"), len(cores)),
            _share(ellipses, len(cores)),
            _share(sum(self._is(line[0], BULLET) for line in lines), len(lines)),
            _share(sum(line.endswith(("…", "...")) for line in lines), len(lines)),
            _share(sum(self._ends_sentence(self._tokens(line)[-1]) for line in lines), len(lines)),
            _share(sum(len(line) <= _SHORT_LINE for line in lines), len(lines)),
            _share(len(lines), len(cores)),
            _share(sum(len(token) for token in tokens if token.startswith(_LINKS)), len(visible)),
            _share(letters, len(visible)),
            _share(sum(self._is(c, DIGIT) for c in visible), len(visible)),
            _share(sum(self._is(c, UPPER) for c in visible), letters),
            holes,
            _share(holes, len(visible)),
            _share(visible.count("{"), len(cores)),
            *repeated[0],
            *repeated[1],
            *(_top_ngram(tokens, n) for n in (2, 3, 4)),
            *(_repeated_ngrams(tokens, n) for n in range(5, 11)),
        )

    def _kind(self, character: str) -> int:
        point = ord(character)
        if point < TABLE_SIZE:
            return int(self._kinds[point])
        return LETTER | UNSPACED if point < 0x40000 else 0

    def _is(self, character: str, bit: int) -> bool:
        return self._kind(character) & bit != 0

    def _stripped(self, line: str) -> str:
        start, end = 0, len(line)
        while start < end and self._is(line[start], SPACE):
            start += 1
        while start < end and self._is(line[end - 1], SPACE):
            end -= 1
        return line[start:end]

    def _tokens(self, line: str) -> list[str]:
        tokens: list[str] = []
        token = ""
        unspaced = False
        for character in [*line, " "]:
            kind = self._kind(character)
            if token and (kind & (SPACE | UNSPACED) or (unspaced and kind & (LETTER | DIGIT))):
                tokens.append(token)
                token, unspaced = "", False
            if not kind & SPACE:
                token += character
                unspaced |= kind & UNSPACED != 0
        return tokens

    def _core(self, token: str) -> str:
        places = [place for place, character in enumerate(token) if self._is(character, LETTER | DIGIT)]
        return token[places[0] : places[-1] + 1] if places else ""

    def _ends_sentence(self, token: str) -> bool:
        found = False
        for character in token:
            found = self._is(character, TERMINAL) or (found and self._is(character, CLOSING))
        return found

    def _paragraphs(self, text: str) -> list[tuple[str, ...]]:
        paragraphs: list[tuple[str, ...]] = []
        current: list[str] = []
        for line in [*map(self._stripped, text.split("\n")), ""]:
            if line:
                current.append(line)
            elif current:
                paragraphs.append(tuple(current))
                current = []
        return paragraphs


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0


def _runs_of_dots(text: str) -> list[str]:
    return [run for run in "".join(c if c == "." else " " for c in text).split() if run]


def _repeated(members: Sequence[object], characters: Sequence[int]) -> tuple[float, float]:
    seen: set[object] = set()
    times = in_them = 0
    for member, length in zip(members, characters):
        if member in seen:
            times += 1
            in_them += length
        seen.add(member)
    return _share(times, len(members)), _share(in_them, sum(characters))


def _top_ngram(tokens: Sequence[str], n: int) -> float:
    counts = Counter(tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1))
    if not counts or (most := max(counts.values())) < 2:
        return 0
    longest = max(sum(map(len, ngram)) for ngram, times in counts.items() if times == most)
    return min(1, most * longest / sum(map(len, tokens)))


def _repeated_ngrams(tokens: Sequence[str], n: int) -> float:
    seen: set[tuple[str, ...]] = set()
    covered: set[int] = set()
    for at in range(len(tokens) - n + 1):
        ngram = tuple(tokens[at : at + n])
        if ngram in seen:
            covered.update(range(at, at + n))
        seen.add(ngram)
    return _share(sum(len(tokens[place]) for place in covered), sum(map(len, tokens)))
