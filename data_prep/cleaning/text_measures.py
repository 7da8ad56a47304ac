"""What a text is like, in numbers: the ones that rules about documents look at, and which repairs it may need, in one pass over its bytes each.

Words are what stands between white space, punctuation at their ends aside; a letter of a script that puts no spaces between words (Han, kana, Thai
and its neighbours) is a word.  N-grams are of what stands between white space as it is.  Lines are those with something in them, paragraphs
what stands between empty lines.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common import native
from common.native import address
from data_prep.cleaning.code_points import dirt, folded, kinds, lower

SOURCE = Path(__file__).with_name("text_measures.c")
PREFIX = 5  # folded letters of a word that a trigger is known by
MAX_GROUPS = 16
_NUM_REMEMBERED = 1 << 16  # words, as in text_measures.c

TRIGGER = 16
ANYTHING = (1 << 32) - 1

# A rule as the compiled loop reads it: places in `Measures` (behind them `ended_lines`), or NOTHING; where there is no limit it is infinite.
NOTHING = -1
NO_RULE, UNKNOWN = -1, -2  # in the place of the rule that refuses a text
LIMITS = np.dtype(
    [("measure", "<i4"), ("unless", "<i4"), ("max", "<f8"), ("min", "<f8"), ("unless_max", "<f8"), ("unless_min", "<f8"),
     ("from_words", "<f8"), ("from_lines", "<f8")]
)  # fmt: skip

_PRIME = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Measures(NamedTuple):
    """The numbers; shares are from 0 to 1, `characters` are code points and those of shares are the visible ones.

    Attributes:
        mean_word_length, longest_word: characters of words, punctuation at their ends aside.
        alphabetic_words: share of the words that have a letter; a dash before a line of dialogue is no word.
        stop_words, stop_word_share: words of the language's list.
        hash_signs, ellipses, curly_brackets, lines_per_word: for each word; of curly brackets the opening ones.
        bullet_lines, ellipsis_lines, terminal_lines, short_lines: share of lines that begin with a bullet, end with an ellipsis, end with a
            mark that ends sentences, have at most 30 characters.
        ended_lines: those of `terminal_lines` that end with no ellipsis.
        link_characters: share in web addresses.
        upper_letters: share of the letters.
        holes, hole_share: U+FFFD, as a number and as a share.
        duplicate_...: lines and paragraphs that were in the text before, of their number and of their characters.
        top_N_gram: share of the characters in the most frequent n-gram, if it is there twice or more (the longest of equally frequent ones).
        duplicate_N_gram: share of the characters in n-grams that were in the text before, counted once.
    """

    characters: float
    words: float
    lines: float
    sentences: float
    mean_word_length: float
    longest_word: float
    alphabetic_words: float
    stop_words: float
    stop_word_share: float
    hash_signs: float
    ellipses: float
    bullet_lines: float
    ellipsis_lines: float
    terminal_lines: float
    short_lines: float
    lines_per_word: float
    link_characters: float
    letters: float
    digits: float
    upper_letters: float
    holes: float
    hole_share: float
    curly_brackets: float
    duplicate_lines: float
    duplicate_line_characters: float
    duplicate_paragraphs: float
    duplicate_paragraph_characters: float
    top_2_gram: float
    top_3_gram: float
    top_4_gram: float
    duplicate_5_gram: float
    duplicate_6_gram: float
    duplicate_7_gram: float
    duplicate_8_gram: float
    duplicate_9_gram: float
    duplicate_10_gram: float

    @property
    def ended_lines(self) -> float:
        """See above."""
        return self.terminal_lines - self.ellipsis_lines


class Measurer:
    """Measures texts of one language.

    Args:
        stop_words: in any case.
        triggers: words by group; at most 16 groups.  A word of the text triggers a group if it is one of the group's, or if its first
            `PREFIX` letters are those of one with a `*` behind it.

    Raises:
        ValueError: if there are more groups.
    """

    def __init__(self, stop_words: Iterable[str] = (), triggers: Mapping[str, Iterable[str]] | None = None) -> None:
        triggers = triggers or {}
        if len(triggers) > MAX_GROUPS:
            raise ValueError(f"there are {len(triggers)} groups of lines with phrases; expected at most {MAX_GROUPS}")
        self.group_bits = {name: 1 << (TRIGGER + number) for number, name in enumerate(triggers)}
        keys: dict[str, int] = {}
        for number, words in enumerate(triggers.values()):
            for word in words:
                key = folded(word.removesuffix("*"))[: PREFIX if word.endswith("*") else None]
                keys[key] = keys.get(key, 0) | 1 << number
        self._stop_words = frozenset(map(folded, stop_words))
        self._library = native.load(SOURCE)
        self._library.text_dirt.restype = ctypes.c_uint32
        self._out = np.zeros(len(Measures._fields))
        self._out_at = ctypes.c_void_p(self._out.ctypes.data)
        stop = _table_of_words(dict.fromkeys(self._stop_words, 0))[0]
        trigger, groups = _table_of_words(keys)
        # What words are like; the size is that of Word in text_measures.c.  Pages that are not written to take no memory.
        room = np.zeros(_NUM_REMEMBERED * 4 + 8, np.uint64)
        room = room[-room.ctypes.data // 8 % 8 :]  # none in two lines of the processor's cache
        self._held: list[NDArray[Any]] = [
            kinds(),
            dirt(),
            lower(),
            stop,
            trigger,
            groups,
            room,
        ]  # the structure has only their places
        self._tables = _Tables(*(array.ctypes.data for array in self._held), len(stop) - 1, len(trigger) - 1)
        self._tables_at = ctypes.byref(self._tables)

    def dirt(self, data: bytes) -> int:
        """What a text (UTF-8) may need: bits as named above, and those of `group_bits`."""
        return int(self._library.text_dirt(self._tables_at, data, ctypes.c_int64(len(data))))

    def judge(
        self, text: bytes, offsets: NDArray[np.int64], hard: int, rules: NDArray[Any], *, measures: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int32], NDArray[np.float64]]:
        """What texts may need (`dirt`), the first rule that refuses each as it is, and the value of that rule.

        All are (num_texts,).  Where no rule does it is `NO_RULE` and the value the words, and `UNKNOWN` where one of the bits of `hard` is found.

        Args:
            text, offsets: UTF-8 of text d is text[offsets[d]:offsets[d + 1]].
            rules: (num_rules,) `LIMITS`.
            measures: whether words are wanted even if there is no rule.
        """
        found = tuple(np.empty(len(offsets) - 1, dtype) for dtype in (np.uint32, np.int32, np.float64))
        self._library.texts_judge(
            self._tables_at, text, address(offsets), ctypes.c_int64(len(offsets) - 1), ctypes.c_uint32(hard), address(rules),
            ctypes.c_int64(len(rules)), int(measures or len(rules) > 0), *map(address, found),
        )  # fmt: skip
        return found  # type: ignore[return-value] # three, of these dtypes

    def measure(self, data: bytes) -> Measures:
        """The numbers of a text (UTF-8).

        Raises:
            ValueError: if there is not enough memory for a very long one.
        """
        if not self._library.text_measure(self._tables_at, data, ctypes.c_int64(len(data)), self._out_at):
            raise ValueError(f"there is not enough memory to measure a text of {len(data)} bytes; lower --max-document-mib")
        return Measures._make(self._out.tolist())


class _Tables(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("kinds", "dirt", "lower", "stop_words", "triggers", "trigger_groups", "words")),
        ("stop_mask", ctypes.c_uint64),
        ("trigger_mask", ctypes.c_uint64),
    )


def hash_table(values: Iterable[tuple[int, int]]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """(size,) hashes and (size,) what is known of each, by open addressing: at most half full, 0 is an empty place."""
    known = list(values)
    size = 16
    while size < 2 * len(known) + 1:
        size *= 2
    keys, bits = np.zeros(size, np.uint64), np.zeros(size, np.uint32)
    for key, bit in known:
        at = key & (size - 1)
        while keys[at]:
            at = (at + 1) & (size - 1)
        keys[at], bits[at] = key, bit
    return keys, bits


def _table_of_words(values: Mapping[str, int]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    return hash_table((_word_hash(word), group) for word, group in values.items())


def _word_hash(word: str) -> int:
    """As `known_by` of `join` over the characters in text_measures.c."""
    value = 0
    for character in word:
        value = ((value ^ ord(character)) * _PRIME) & _MASK
    value ^= value >> 32
    value = (value * _PRIME) & _MASK
    value ^= value >> 29
    return value or 1
