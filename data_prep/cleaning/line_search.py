"""Whether a text has what the rules about lines and phrases look for, and hashes of its short lines: one pass over its bytes each, in compiled code.

What is found is what may be: `line_rules` decides, and is asked for few texts.  Without a compiler everything may be.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import native
from common.native import address
from data_prep.cleaning.code_points import kinds, lower
from data_prep.cleaning.text_measures import hash_table

SOURCE = Path(__file__).with_name("line_search.c")
MARKS = "|»›•·\t"  # that part menus, as in line_search.c
_NUM_HEADS = 4096  # as there too
_MASK = (1 << 64) - 1
_DIGITS = re.compile(r"\d+")


class LineSearch:
    """Searches texts for lines and phrases.

    Args:
        whole: by bit, phrases that are looked for as whole lines, or in lines parted as menus are.
        contains: by bit, groups of phrases: of each group one must be in the text, wherever it is.
        repeated_bit, repeated: hashes (`line_hashes`) of lines that are looked for in every text, at its ends or three in a row, and their bit.
        max_words: that such lines have.
        in_threes: bits of `whole` of which three lines must follow each other, or one be parted.
    """

    def __init__(
        self,
        whole: Mapping[int, Iterable[str]],
        contains: Mapping[int, Sequence[Sequence[str]]],
        repeated_bit: int = 0,
        repeated: Set[int] = frozenset(),
        max_words: float = math.inf,
        in_threes: int = 0,
    ) -> None:
        self._library = native.load(SOURCE)
        self._hashes = np.zeros(0, np.uint64)  # room of `short_lines`
        # An empty phrase is everywhere; of more groups than fit the first ones tell enough.
        contains = {bit: kept for bit, groups in contains.items() if (kept := [group for group in groups if all(group)][:32])}
        self.always = repeated_bit if repeated else 0
        self._bits = sum(whole) | sum(contains) | self.always
        lines = dict.fromkeys(repeated, self.always)
        longest = math.ceil(min(max_words, 1 << 40)) if repeated else 0
        for bit, phrases in whole.items():
            words = [" ".join(phrase.lower().split()) for phrase in phrases]
            longest = max([longest, *(line.count(" ") + 1 for line in words)])
            for key in line_hashes(words) if words else ():
                lines[key] = lines.get(key, 0) | bit
        table, line_bits = hash_table(lines.items())
        found = [
            (bit, number, phrase.encode()) for bit, groups in contains.items() for number, group in enumerate(groups) for phrase in group
        ]
        key_size = min([8, *(len(phrase) for _, _, phrase in found)])
        self._held: list[NDArray[Any]] = [
            kinds(),
            lower(),
            table,
            line_bits,
            *_phrase_tables(found, key_size),
        ]  # the structure has only their places
        with_marks = sum(bit for bit, phrases in whole.items() if any(mark in phrase for phrase in phrases for mark in MARKS))
        masks = sum(whole), sum(contains), self._bits, self.always, in_threes & ~with_marks, with_marks
        self._search = _Search(*(array.ctypes.data for array in self._held), len(table) - 1, longest, (1 << 8 * key_size) - 1, *masks)
        self._library.search_text.restype = ctypes.c_uint32

    def found(self, data: bytes, bits: int) -> int:
        """The bits without those of lines and phrases that the text (UTF-8) has not."""
        wanted = (bits & self._bits) | self.always
        if not wanted:
            return bits | self.always
        return (bits & ~self._bits) | int(
            self._library.search_text(ctypes.byref(self._search), data, ctypes.c_int64(len(data)), ctypes.c_uint32(wanted))
        )

    def found_of_all(self, text: bytes, offsets: NDArray[np.int64], hard: int, bits: NDArray[np.uint32]) -> None:
        """The same for texts one behind the other in place of their `bits` (num_texts,), and MARKUP; those that have one of `hard` keep the others."""
        self._library.search_texts(
            ctypes.byref(self._search), text, address(offsets), ctypes.c_int64(len(bits)), ctypes.c_uint32(hard), ctypes.c_uint32(self.always),
            address(bits),
        )  # fmt: skip

    def short_lines(self, text: bytes, offsets: NDArray[np.int64], max_words: int) -> tuple[NDArray[np.uint64], list[int]]:
        """(num_hashes,) the distinct hashes of lines of at most so many words of each text, one text behind the other, and the texts that Python has to look at."""
        num_texts = len(offsets) - 1
        most = len(text) // 2 + num_texts  # a line that has a hash has a character, and all but the last of a text end
        if len(self._hashes) < most:
            self._hashes = np.empty(most, np.uint64)
        ends = np.empty(num_texts, np.int64)
        odd = np.empty(num_texts, np.bool_)
        if not self._library.short_lines(
            ctypes.byref(self._search),
            text,
            address(offsets),
            ctypes.c_int64(num_texts),
            ctypes.c_int64(max_words),
            address(self._hashes),
            address(ends),
            address(odd),
        ):
            raise ValueError(f"there is not enough memory to count the lines of {len(text)} bytes; lower --max-document-mib")
        return self._hashes[: ends[-1] if num_texts else 0].copy(), np.flatnonzero(odd).tolist()


def _phrase_tables(phrases: Sequence[tuple[int, int, bytes]], key_size: int) -> list[NDArray[Any]]:
    """Bit, number of the group and bytes of each phrase as `Search` in line_search.c has them, from `phrases` to `groups`."""
    heads, nexts = np.zeros(_NUM_HEADS, np.uint32), np.zeros(len(phrases) + 1, np.uint32)
    groups = np.zeros(32, np.uint32)
    for place, (bit, number, phrase) in enumerate(phrases):
        head = (int.from_bytes(phrase[:key_size], "little") * 0x9E3779B97F4A7C15 & _MASK) >> 52
        nexts[place], heads[head] = heads[head], place + 1
        groups[bit.bit_length() - 1] |= 1 << number
    return [
        np.frombuffer(b"".join(phrase for _, _, phrase in phrases) + b"\0", np.uint8),
        np.cumsum([0, *(len(phrase) for _, _, phrase in phrases)], dtype=np.int64)[1:],
        np.array([bit.bit_length() - 1 for bit, _, _ in phrases], np.uint32),
        np.array([1 << number for _, number, _ in phrases], np.uint32),
        heads,
        nexts,
        groups,
    ]


class _Search(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in (
                "kinds", "lower", "lines", "line_bits", "phrases", "phrase_ends", "phrase_bits", "phrase_groups", "heads", "nexts", "groups",
            )
        ),
        ("lines_mask", ctypes.c_uint64),
        ("max_words", ctypes.c_int64),
        ("key_mask", ctypes.c_uint64),
        ("whole", ctypes.c_uint32),
        ("contains", ctypes.c_uint32),
        ("everything", ctypes.c_uint32),
        ("in_rows", ctypes.c_uint32),
        ("in_threes", ctypes.c_uint32),
        ("with_marks", ctypes.c_uint32),
    )  # fmt: skip


def line_hashes(lines: Sequence[str]) -> list[int]:
    """64 bits of each line in small letters, digits aside: pages are numbered."""
    data = _DIGITS.sub("0", "\n".join(lines)).encode()
    library = native.load(SOURCE)
    hashes = np.empty(data.count(b"\n") + 1, np.uint64)
    library.hash_lines(data, ctypes.c_int64(len(data)), address(hashes))
    return list(hashes.tolist())
