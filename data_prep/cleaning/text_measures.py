"""Measures of text that filters use, and the repairs it may need: each in one pass over its bytes.

Words are what stands between white space, punctuation at their ends aside; a letter of a script that puts no spaces between words (Han, kana, Thai
and its neighbours) is a word.  N-grams are of what stands between white space as it is.  Lines are those with something in them, paragraphs
what stands between empty lines.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common import native
from common.native import address
from data_prep.cleaning.code_points import folded, kinds, lower, noise

SOURCE = Path(__file__).with_name("text_measures.c")
ALL_NGRAMS = (2, 10)
_PRIME = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Measures(NamedTuple):
    """The numbers; shares are from 0 to 1, `characters` are code points and those of shares are the visible ones.

    Attributes:
        mean_word_length, longest_word: characters of words, punctuation at their ends aside.
        alphabetic_words: share of the words that have a letter; a dash before a line of dialogue is not a word.
        stop_words, stop_word_share: words of the language's list.
        hash_signs, ellipses, curly_brackets, lines_per_word: for each word; of curly brackets the opening ones.
        bullet_lines, ellipsis_lines, terminal_lines, short_lines: share of lines that begin with a bullet, end with an ellipsis, end with a
            mark that ends sentences, have at most 30 characters.
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


class Measurer:
    """Measures texts of one language.

    Args:
        stop_words: in any case.
    """

    def __init__(self, stop_words: Iterable[str] = ()) -> None:
        self._library = native.load(SOURCE)
        stop = _table_of_words({*map(folded, stop_words)})
        self._held = (kinds(), noise(), lower(), stop)  # the structure has only their places
        self._tables = _Tables(*(array.ctypes.data for array in self._held), len(stop) - 1)

    def noise(self, text: bytes, offsets: NDArray[np.int64] | None = None) -> NDArray[np.uint32]:
        """(num_texts,) what texts may need (bits of `code_points`): UTF-8 of text d is text[offsets[d]:offsets[d + 1]]; without offsets it is one text."""
        offsets = _whole(text, offsets)
        found = np.empty(len(offsets) - 1, np.uint32)
        self._library.texts_noise(ctypes.byref(self._tables), text, address(offsets), ctypes.c_int64(len(found)), address(found))
        return found

    def measures(self, text: bytes, offsets: NDArray[np.int64] | None = None, ngrams: tuple[int, int] = ALL_NGRAMS) -> NDArray[np.float64]:
        """(num_texts, num_measures) numbers of texts in the order of `Measures`.

        Args:
            text, offsets: as for `noise`.
            ngrams: the fewest and the most tokens of n-grams that are counted; numbers of others are 0.

        Raises:
            ValueError: if there is not enough memory for a very long one.
        """
        offsets = _whole(text, offsets)
        found = np.empty((len(offsets) - 1, len(Measures._fields)))
        if not self._library.texts_measure(
            ctypes.byref(self._tables), text, address(offsets), ctypes.c_int64(len(found)), *ngrams, address(found)
        ):
            raise ValueError(f"there is not enough memory to measure {len(text)} bytes of text; lower --max-document-mib")
        return found

    def measure(self, data: bytes) -> Measures:
        """The numbers of one text (UTF-8)."""
        return Measures._make(self.measures(data)[0].tolist())


def _whole(text: bytes, offsets: NDArray[np.int64] | None) -> NDArray[np.int64]:
    return np.array([0, len(text)], np.int64) if offsets is None else offsets


class _Tables(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_void_p) for name in ("kinds", "noise", "lower", "stop_words")), ("stop_mask", ctypes.c_uint64))


def _table_of_words(words: set[str]) -> NDArray[np.uint64]:
    """(size,) hashes by open addressing: at most half full, 0 is an empty place."""
    keys = np.zeros(1 << max(4, (2 * len(words)).bit_length()), np.uint64)
    for word in words:
        at = (key := _word_hash(word)) & (len(keys) - 1)
        while keys[at]:
            at = (at + 1) & (len(keys) - 1)
        keys[at] = key
    return keys


def _word_hash(word: str) -> int:
    """As `known_by` of `join` over the characters in text_measures.c."""
    value = 0
    for character in word:
        value = ((value ^ ord(character)) * _PRIME) & _MASK
    value ^= value >> 32
    value = (value * _PRIME) & _MASK
    value ^= value >> 29
    return value or 1
