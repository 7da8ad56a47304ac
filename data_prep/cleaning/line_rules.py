"""Boilerplate lines: cookie notices, script warnings, menus, buttons, damaged lines, and lines repeated across a corpus.

A rule names phrases.  `contains`: a line that has a phrase of each group, one of the first group at the beginning of a word, and not too many words, goes.  `whole`: a line goes that is a phrase,
or phrases with marks between them (Home | About us | Contact), where so many such lines follow each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xxhash

from data_prep.cleaning import setting_values
from data_prep.cleaning.document_rules import begins_a_word

CONTAINS, WHOLE = MATCHES = ("contains", "whole")
_PARTS = re.compile(r"\s*\|+\s*|\s+[»›•·]\s+|\t+")
_PARTING = ("|", " » ", " › ", " • ", " · ", "\t")
_KEYS = {"match", "phrases", "max_words", "run", "min_words", "unterminated"}
_MAX_MENU = 300  # characters of a line
_ENDS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")
_CLOSING = "\"'”“’‘»«›‹)]"


@dataclass(frozen=True)
class LineRule:
    """Which lines go.

    Attributes:
        groups: phrases in small letters; of each group one must be in the line, of the first one at the beginning of a word (`contains`), or the line is one of the first group.
        max_words: lines of more words stay.
        run: how many such lines must follow each other.
        min_words: lines of fewer words go, whatever they hold.
        unterminated: lines that do not end as sentences do go (C4).
    """

    name: str
    match: str = CONTAINS
    groups: tuple[tuple[str, ...], ...] = ()
    max_words: int = 80
    run: int = 1
    min_words: int = 0
    unterminated: bool = False

    @cached_property
    def phrases(self) -> frozenset[str]:
        """Those that a line may be."""
        return frozenset(self.groups[0]) if self.groups else frozenset()

    def may_take(self, text: str) -> bool:
        """Whether it could take a line of a text in small letters: what every such line holds must be in the text."""
        if self.match == WHOLE or self.min_words or self.unterminated:
            return True
        return all(any(phrase in text for phrase in group) for group in self.groups)

    def takes(self, line: str) -> bool:
        """Whether a line, in small letters and without white space at its ends, is meant."""
        if self.match == WHOLE:
            if line in self.phrases:
                return True
            parts = [part.strip(" .:!") for part in _PARTS.split(line) if part.strip(" .:!")]
            return len(parts) > 2 and 2 * sum(part in self.phrases for part in parts) >= len(parts)
        if self.unterminated and not line.rstrip(_CLOSING).endswith(_ENDS):
            return True
        words = len(line.split())
        if words < self.min_words:
            return True
        if not self.groups or words > self.max_words:
            return False
        first, *others = self.groups
        return any(begins_a_word(phrase, line) for phrase in first) and all(any(phrase in line for phrase in group) for group in others)


def line_rules(settings: Mapping[str, Any]) -> tuple[LineRule, ...]:
    """The rules of the part `lines` of filter settings.

    Raises:
        ValueError: if a rule has an unknown key, or nothing to look for.
    """
    rules = []
    for name, row in settings.items():
        if row is False:
            continue
        where = f"lines: {name}"
        row = setting_values.mapping(where, row, _KEYS)
        if row.get("match", CONTAINS) not in MATCHES:
            raise ValueError(f"{where} has the match {row['match']!r}; expected {' or '.join(MATCHES)}")
        groups = _groups(where, row.get("phrases"))
        rule = LineRule(
            name, row.get("match", CONTAINS), tuple(tuple(map(str.lower, group)) for group in groups),
            setting_values.count(f"{where}: max_words", row.get("max_words", 80)),
            setting_values.count(f"{where}: run", row.get("run", 1), 1),
            setting_values.count(f"{where}: min_words", row.get("min_words", 0)),
            setting_values.switch(f"{where}: unterminated", row.get("unterminated")),
        )  # fmt: skip
        if not (rule.groups or rule.min_words or rule.unterminated):
            raise ValueError(f"lines: {name} has no phrases; expected a list of them, or false to switch it off")
        rules.append(rule)
    return tuple(rules)


def _groups(where: str, phrases: Any) -> tuple[tuple[str, ...], ...]:
    """Phrases by group; a list of them alone is one."""
    if not isinstance(phrases, list) or not any(isinstance(group, list) for group in phrases):
        alone = setting_values.texts(f"{where}: phrases", phrases)
        return (alone,) if alone else ()
    for group in phrases:
        if not isinstance(group, list) or not group:
            raise ValueError(f"{where}: phrases has {group!r} among lists; expected phrases alone, or lists with phrases in each")
    return tuple(setting_values.texts(f"{where}: phrases", group) for group in phrases)


def without_lines(
    text: str, rules: Sequence[LineRule], *, repeated: Set[int] = frozenset(), max_words: float = math.inf, holes: bool = False
) -> tuple[str, dict[str, list[str]]]:
    """The text without the lines that a rule takes, and those lines by reason.

    Args:
        repeated: hashes (`line_hashes`) of short lines that many documents of the corpus have: such a line goes at the beginning and at the end of
            the text, and where three follow each other; elsewhere it may be a heading, and so it is where the text numbers it (Article 7, Article 8)
            and where it begins a text with nothing but a number and a word (Chapter III).
        max_words: none of those lines has so many spaces.
        holes: whether lines with U+FFFD go.
    """
    lower = text.lower()
    rules = [rule for rule in rules if rule.may_take(lower)]
    lines = text.split("\n")
    small = [line.strip() for line in lower.split("\n")]
    # Nearly all texts keep all their lines, which is to be found out soon.
    hashes = _hashes_of_short(lines, small, max_words) if repeated else []
    if repeated.isdisjoint(hashes):
        repeated = frozenset()
    if not (holes or repeated or any(rule.match == CONTAINS for rule in rules) or _has_marks(text)):
        rules = [rule for rule in rules if not rule.phrases.isdisjoint(small)]
    if not (rules or holes or repeated):
        return text, {}
    full = [place for place, line in enumerate(small) if line]
    gone: dict[int, str] = {}
    menus = _like_menus(small, full, rules, parted=_has_marks(text))
    for rule in rules:
        asked = full if rule.match == CONTAINS else menus
        taken = {place for place in asked if rule.takes(small[place])}
        for run in _runs(place if place in taken else None for place in full) if taken else ():
            if len(run) >= rule.run or (rule.match == WHOLE and any(_PARTS.search(small[place]) for place in run)):
                gone.update((place, rule.name) for place in run)
    if holes:
        gone.update((place, HOLES) for place in full if "\ufffd" in lines[place])
    if repeated:
        numbered = _numbered(small, hashes, repeated)
        for run in _runs(place if hashes[place] in repeated and hashes[place] not in numbered else None for place in full):
            if run[0] == full[0] and all(_HEADING.fullmatch(small[place]) for place in run):
                continue
            if len(run) > 2 or run[0] == full[0] or run[-1] == full[-1]:
                gone.update((place, REPEATED) for place in run if place not in gone)
    if not gone:
        return text, {}
    by_reason: dict[str, list[str]] = {}
    for place, name in sorted(gone.items()):
        by_reason.setdefault(name, []).append(lines[place])
    return "\n".join(line for place, line in enumerate(lines) if place not in gone), by_reason


HOLES, REPEATED = "lines with holes", "repeated lines"


def _has_marks(text: str) -> bool:
    """Whether there is a mark that parts menus."""
    return any(mark in text for mark in _PARTING)


def _like_menus(small: Sequence[str], full: Sequence[int], rules: Sequence[LineRule], *, parted: bool) -> set[int]:
    """Places of lines that are a phrase of a rule, or parted as menus are."""
    phrases: set[str] = set().union(*(rule.phrases for rule in rules if rule.match == WHOLE))
    if not phrases:
        return set()
    return {
        place
        for place in full
        if small[place] in phrases or (parted and len(small[place]) <= _MAX_MENU and any(mark in small[place] for mark in _PARTING))
    }


def _runs(places: Iterable[int | None]) -> list[list[int]]:
    runs: list[list[int]] = [[]]
    for place in places:
        if place is None:
            runs.append([])
        else:
            runs[-1].append(place)
    return [run for run in runs if run]


def _numbered(small: Sequence[str], hashes: Sequence[int], repeated: Set[int]) -> set[int]:
    """Those hashes of repeated lines of a number and a word that the text has more than once, with a higher number each time."""
    forms: dict[int, list[int]] = {}
    for line, hashed in zip(small, hashes):
        if hashed in repeated and (found := _DIGITS.search(line)) and _HEADING.fullmatch(line):
            forms.setdefault(hashed, []).append(int(found.group()))
    return {hashed for hashed, numbers in forms.items() if len(numbers) > 1 and numbers == sorted(set(numbers))}


def _hashes_of_short(lines: Sequence[str], small: Sequence[str], max_words: float) -> list[int]:
    """A hash of each line, 0 where it has too many words to be among those that are looked for.

    Args:
        small: the lines in small letters, without white space at their ends.
    """
    found = [0] * len(lines)
    short = [place for place, line in enumerate(lines) if line.count(" ") < max_words or line != line.strip()]
    for place, hashed in zip(short, line_hashes([small[place] for place in short])):
        found[place] = hashed
    return found


def line_hashes(lines: Sequence[str]) -> list[int]:
    """64 bits of each line in small letters, digits aside: pages are numbered."""
    return [xxhash.xxh3_64_intdigest(line) for line in _DIGITS.sub("0", "\n".join(lines)).encode().split(b"\n")]


_DIGITS = re.compile(r"\d+")
_NUMBER = r"(?:\d{1,4}|[ivxlcdm]+)"
_HEADING = re.compile(rf"(?:[^\W\d_]+\.? )?{_NUMBER}[.)]?|{_NUMBER}[.)]? [^\W\d_]+")
