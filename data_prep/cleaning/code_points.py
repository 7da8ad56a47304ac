"""Properties of code points, and the repairs that each may call for: tables for the loops of `text_measures`."""

from __future__ import annotations

import os
import sys
import unicodedata
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import regex
from numpy.typing import NDArray

from common import native
from common.artifacts import digest_bytes
from data_prep.cleaning import text_hygiene

TABLE_SIZE = 0x30000  # code points in the tables; those behind are ideographs, or nothing
# What a code point is.
LETTER, DIGIT, SPACE, TERMINAL, CLOSING, UNSPACED, BULLET, UPPER = (1 << bit for bit in range(8))
# What a text may need.
LINE_END, CONTROL, INVISIBLE, FORM, SPACING, LEAD, FOLLOWER, HOLE, MARKUP, ADDRESS, NUMBER = (1 << bit for bit in range(11))
LONG_LEAD = 1 << 8  # in the table of code points alone
_TERMINAL = ".!?…。！？｡।॥؟۔።፧᙮։"
_CLOSING = "\"'”“’‘»«›‹)]}」』）"
_BULLETS = "•‣▪▫◦●○◆■□–—*·∙⁃➢➤►▶✓✔❖-"
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&\p{L}]", regex.V1)
_MARKS = regex.compile(r"[\p{M}\u1100-\u11ff]")


@cache
def _tables() -> dict[str, NDArray[Any]]:
    """The tables of code points, kept beside the compiled loops: to make them takes a third of a second."""
    from data_prep.cleaning import mojibake

    sources = b"".join(Path(module).read_bytes() for module in (__file__, text_hygiene.__file__, mojibake.__file__))
    key = digest_bytes(sources + f"{unicodedata.unidata_version} {regex.__version__} {sys.version}".encode()).removeprefix("xxh3:")
    path = native.cache_dir() / f"code_points-{key[:16]}.npz"
    try:
        with np.load(path) as kept:
            return {name: kept[name] for name in ("kinds", "noise", "lower")}
    except (OSError, ValueError, KeyError, BadZipFile):
        made: dict[str, NDArray[Any]] = {"kinds": _kinds(), "noise": _noise(), "lower": _lower()}
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
def noise() -> NDArray[np.uint16]:
    """What each code point of the tables asks for, (TABLE_SIZE,): the repairs of `text_hygiene`, and the signs of text decoded wrongly."""
    return _tables()["noise"]


def _noise() -> NDArray[np.uint16]:
    from data_prep.cleaning.mojibake import FOLLOWERS, LEADS, LONG_LEADS

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
    bits[0xFFFD] |= HOLE
    return bits


@cache
def lower() -> NDArray[np.uint32]:
    """The small letter of each code point of the tables, (TABLE_SIZE,), where that is one code point; else the code point itself."""
    return _tables()["lower"]


def _lower() -> NDArray[np.uint32]:
    return np.array([ord(low) if len(low := chr(c).lower()) == 1 else c for c in range(TABLE_SIZE)], np.uint32)


def folded(word: str) -> str:
    """A word in small letters, as the loops compare words."""
    return "".join(low if len(low := c.lower()) == 1 else c for c in word)
