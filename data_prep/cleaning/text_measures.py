"""What a text is like, in numbers: the ones that rules about documents look at, and which repairs it may need, in one pass over its bytes each.

Words are what stands between white space, punctuation at their ends aside; a letter of a script that puts no spaces between words (Han, kana, Thai
and its neighbours) is a word.  N-grams are of what stands between white space as it is.  Lines are those with something in them, paragraphs
what stands between empty lines.
"""

from __future__ import annotations

import ctypes
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import regex
from numpy.typing import NDArray

from data_prep import native
from data_prep.artifacts import digest_bytes
from data_prep.cleaning import text_hygiene

SOURCE = Path(__file__).with_name("text_measures.c")
TABLE_SIZE = 0x30000  # code points in the tables; those behind are ideographs, or nothing
PREFIX = 5  # folded letters of a word that a trigger is known by
MAX_GROUPS = 16

# What a code point is.
LETTER, DIGIT, SPACE, TERMINAL, CLOSING, UNSPACED, BULLET, UPPER = (1 << bit for bit in range(8))
# What a text may need; the groups of its trigger words follow from bit 16.
LINE_END, CONTROL, INVISIBLE, FORM, SPACING, LEAD, FOLLOWER, HOLE, MARKUP, ADDRESS, NUMBER, CAPITAL = (1 << bit for bit in range(12))
LONG_LEAD = 1 << 8  # in the table of code points alone
TRIGGER = 16
ANYTHING = (1 << 32) - 1

_TERMINAL = ".!?…。！？｡।॥؟۔።፧᙮։"
_CLOSING = "\"'”“’‘»«›‹)]}」』）"
_BULLETS = "•‣▪▫◦●○◆■□–—*·∙⁃➢➤►▶✓✔❖-"
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&\p{L}]", regex.V1)
_MARKS = regex.compile(r"[\p{M}\u1100-\u11ff]")
_PRIME = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Measures(NamedTuple):
    """The numbers; shares are from 0 to 1, `characters` are code points and those of shares are the visible ones.

    Attributes:
        mean_word_length, longest_word: characters of words, punctuation at their ends aside.
        alphabetic_words: share of what stands between white space that has a letter in it.
        stop_words, stop_word_share: words of the language's list.
        hash_signs, ellipses, lines_per_word: for each word.
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


@cache
def _tables() -> dict[str, NDArray[Any]]:
    """The tables of code points, kept beside the compiled loops: to make them takes a third of a second."""
    from data_prep.cleaning import mojibake

    sources = b"".join(Path(module).read_bytes() for module in (__file__, text_hygiene.__file__, mojibake.__file__))
    key = digest_bytes(sources + f"{unicodedata.unidata_version} {regex.__version__} {sys.version}".encode()).removeprefix("xxh3:")
    path = native.cache_dir() / f"code_points-{key[:16]}.npz"
    try:
        with np.load(path) as kept:
            return {name: kept[name] for name in ("kinds", "dirt", "lower")}
    except (OSError, ValueError, KeyError, BadZipFile):
        made: dict[str, NDArray[Any]] = {"kinds": _kinds(), "dirt": _dirt(), "lower": _lower()}
        with suppress(OSError):  # no place to keep them is no reason to stop
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
            with open(partial, "wb") as file:
                np.savez(file, **made)
            os.replace(partial, path)
        return made


@cache
def kinds() -> NDArray[np.uint8]:
    """What each code point of the tables is, (TABLE_SIZE,)."""
    return _tables()["kinds"]


def _kinds() -> NDArray[np.uint8]:
    characters = list(map(chr, range(TABLE_SIZE)))
    bits = np.array([c.isalpha() * LETTER | (c.isdecimal() or c.isdigit()) * DIGIT | c.isspace() * SPACE for c in characters], np.uint8)
    bits |= np.array([c.isupper() * UPPER for c in characters], np.uint8)
    for marks, bit in ((_TERMINAL, TERMINAL), (_CLOSING, CLOSING), (_BULLETS, BULLET)):
        bits[[ord(mark) for mark in marks]] |= bit
    bits[[ord(found) for found in _UNSPACED.findall("".join(characters))]] |= UNSPACED
    return bits


@cache
def dirt() -> NDArray[np.uint16]:
    """What each code point of the tables asks for: the repairs of `text_hygiene`, and the signs of text that was decoded wrongly."""
    return _tables()["dirt"]


def _dirt() -> NDArray[np.uint16]:
    from data_prep.cleaning.mojibake import CAPITALS, FOLLOWERS, LEADS, LONG_LEADS

    everything = "".join(map(chr, range(TABLE_SIZE)))
    bits = np.zeros(TABLE_SIZE, np.uint16)
    for pattern, bit in (
        (text_hygiene.LINE_ENDS, LINE_END),
        (text_hygiene.CONTROL, CONTROL),
        (text_hygiene.INVISIBLE, INVISIBLE),
        (text_hygiene.SPACES, SPACING),
        (_MARKS, FORM),
    ):
        bits[[ord(found) for found in pattern.findall(everything)]] |= bit
    bits[np.array([unicodedata.normalize("NFC", c) != c for c in everything])] |= FORM
    bits[[ord(c) for c in LEADS]] |= LEAD
    bits[[ord(c) for c in LONG_LEADS]] |= LONG_LEAD
    bits[[ord(c) for c in FOLLOWERS]] |= FOLLOWER
    bits[[ord(c) for c in CAPITALS]] |= CAPITAL
    bits[0xFFFD] |= HOLE
    return bits


@cache
def lower() -> NDArray[np.uint32]:
    """The small letter of each code point of the tables, where that is one code point."""
    return _tables()["lower"]


def _lower() -> NDArray[np.uint32]:
    return np.array([ord(low) if len(low := chr(c).lower()) == 1 else c for c in range(TABLE_SIZE)], np.uint32)


def folded(word: str) -> str:
    """A word in small letters, as the loops compare words."""
    return "".join(low if len(low := c.lower()) == 1 else c for c in word)


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
        if self._library is None:
            from data_prep.cleaning.text_measures_plain import PlainLoops

            self._plain = PlainLoops(self._stop_words)
            return
        self._library.text_dirt.restype = ctypes.c_uint32
        self._out = np.zeros(len(Measures._fields))
        self._out_at = ctypes.c_void_p(self._out.ctypes.data)
        stop = _hash_table(dict.fromkeys(self._stop_words, 0))[0]
        trigger, groups = _hash_table(keys)
        self._held = (kinds(), dirt(), lower(), stop, trigger, groups)  # the structure has only their places
        self._tables = _Tables(*(array.ctypes.data for array in self._held), len(stop) - 1, len(trigger) - 1)
        self._tables_at = ctypes.byref(self._tables)

    def dirt(self, data: bytes) -> int:
        """What a text (UTF-8) may need: bits as named above, and those of `group_bits`; more than it needs where there is no compiler."""
        if self._library is None:
            return ANYTHING
        return int(self._library.text_dirt(self._tables_at, data, ctypes.c_int64(len(data))))

    def measure(self, data: bytes) -> Measures:
        """The numbers of a text (UTF-8).

        Raises:
            ValueError: if there is not enough memory for a very long one.
        """
        if self._library is None:
            return self._plain.measure(data.decode())
        if not self._library.text_measure(self._tables_at, data, ctypes.c_int64(len(data)), self._out_at):
            raise ValueError(f"there is not enough memory to measure a text of {len(data)} bytes; lower --max-document-mib")
        return Measures._make(self._out.tolist())


class _Tables(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("kinds", "dirt", "lower", "stop_words", "triggers", "trigger_groups")),
        ("stop_mask", ctypes.c_uint64),
        ("trigger_mask", ctypes.c_uint64),
    )


def _hash_table(values: Mapping[str, int]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Open addressing by `_word_hash`, at most half full; 0 is an empty place."""
    size = 16
    while size < 2 * len(values) + 1:
        size *= 2
    keys, groups = np.zeros(size, np.uint64), np.zeros(size, np.uint32)
    for word, group in values.items():
        key = _word_hash(word)
        at = key & (size - 1)
        while keys[at]:
            at = (at + 1) & (size - 1)
        keys[at], groups[at] = key, group
    return keys, groups


def _word_hash(word: str) -> int:
    """As `finish` of `join` over the characters in text_measures.c."""
    value = 0
    for character in word:
        value = ((value ^ ord(character)) * _PRIME) & _MASK
    value ^= value >> 32
    value = (value * _PRIME) & _MASK
    value ^= value >> 29
    return value or 1
