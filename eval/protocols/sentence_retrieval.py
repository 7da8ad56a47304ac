"""Sentence retrieval as OFA measures it: of each English sentence, whether its translation is among the nearest ones of another language.

Tatoeba in the form of XTREME (Hu et al. 2020), verses by their number, or any texts whose lines are translations of each other.  A tie
counts against the translation, so that vectors which are all alike find nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.plain_files import read_text

Vectors = NDArray[np.float32]

LAYER, TOP = 8, 10  # OFA, experiments
MOST_SENTENCES = {"lines": 1000, "tatoeba": 1000, "verses": 500}  # OFA, experiments
_TATOEBA = re.compile(r"tatoeba\.(?P<language>\w+)-eng\.(?P=language)")
_BLOCK = 512  # English sentences whose similarities are held at once


@dataclass(frozen=True)
class Pairs:
    """English sentences and their translations, in the same order."""

    english: tuple[str, ...]
    other: tuple[str, ...]


def line_pairs(english: Path, other: Path, *, most: int) -> Pairs:
    """Two files whose lines are translations of each other; the first so many that are no blank on either side.

    Raises:
        ValueError: if they have different numbers of lines, or no pair.
    """
    sides = [read_text(path).removesuffix("\n").split("\n") for path in (english, other)]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{english} has {len(sides[0])} lines and {other} {len(sides[1])}; expected a translation of each line, in the same order"
        )
    return _first([*zip(*sides, strict=True)], most, source=f"{english} and {other}")


def tatoeba_pairs(directory: Path, *, most: int) -> dict[str, Pairs]:
    """Each language of a folder with files such as `tatoeba.slv-eng.slv` and `tatoeba.slv-eng.eng`.

    Raises:
        ValueError: if there is none, or a side of one is missing.
    """
    found = sorted((match["language"], path) for path in directory.glob("tatoeba.*") if (match := _TATOEBA.fullmatch(path.name)))
    if not found:
        raise ValueError(f"{directory} has no file such as tatoeba.slv-eng.slv; give the folder of XTREME's Tatoeba")
    return {language: line_pairs(path.with_suffix(".eng"), path, most=most) for language, path in found}


def verse_pairs(english: Path, others: Mapping[str, Path], *, most: int) -> dict[str, Pairs]:
    """Each of several translations beside an English one: files with a verse a line, its number and its text with a tab between.

    Raises:
        ValueError: if a line has no number, or a translation no verse of the English one.
    """
    of_english = _verses(english)
    found = {}
    for language, path in others.items():
        verses = _verses(path)
        both = [(text, verses[number]) for number, text in of_english.items() if number in verses]
        found[language] = _first(both, most, source=f"{english} and {path}")
    return found


def _verses(path: Path) -> dict[str, str]:
    verses = {}
    for place, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        number, tab, text = line.partition("\t")
        if not tab or not number.strip().isdigit():
            raise ValueError(f"line {place} of {path} is not a verse; expected its number, a tab and its text, such as 40001001<tab>...")
        verses[number.strip()] = text
    return verses


def _first(pairs: Sequence[tuple[str, str]], most: int, *, source: str) -> Pairs:
    whole = [(a.strip(), b.strip()) for a, b in pairs if a.strip() and b.strip()][:most]
    if not whole:
        raise ValueError(f"{source} have no sentence in common; expected translations of each other")
    english, other = zip(*whole, strict=True)
    return Pairs(english, other)


def ranks(english: Vectors, other: Vectors) -> NDArray[np.int64]:
    """Which place the translation of each English sentence has among all sentences of the other language, by cosine, from 1 on.

    Args:
        english, other: (sentences, width); rows of the same number are translations.

    Raises:
        ValueError: if a row is zero or not finite.
    """
    a, b = (_unit(vectors) for vectors in (english, other))
    found = np.empty(len(a), dtype=np.int64)
    for first in range(0, len(a), _BLOCK):
        similarities = a[first : first + _BLOCK] @ b.T
        own = similarities[np.arange(len(similarities)), np.arange(first, first + len(similarities))]
        found[first : first + _BLOCK] = (similarities >= own[:, None]).sum(axis=1)
    return found


def _unit(vectors: Vectors) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise ValueError("a sentence vector is zero or not finite; check the model")
    unit: NDArray[np.float64] = wide / lengths
    return unit
