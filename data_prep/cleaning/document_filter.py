"""A document through the filters: repaired, lines that are not its own and personal data taken out, and measured against the rules.

What a text may need is found in one pass over its bytes (`Measurer.dirt`); most texts need next to nothing, and no expression is tried on those.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import xxhash

from data_prep.cleaning import mojibake
from data_prep.cleaning.code_pages import WRONG_PAGE
from data_prep.cleaning.code_points import (
    ADDRESS,
    CAPITAL,
    CONTROL,
    FORM,
    HOLE,
    INVISIBLE,
    LEAD,
    LINE_END,
    MARKUP,
    NUMBER,
    REPEATED,
    SPACING,
)
from data_prep.cleaning.filter_settings import MEASURES, WRONG_PLACES, FilterSettings, Rule, limits, settings_for
from data_prep.cleaning.line_rules import CONTAINS, WHOLE, begins_a_word, without_lines
from data_prep.cleaning.line_search import LineSearch
from data_prep.cleaning.markup import without_markup
from data_prep.cleaning.personal_data import masked, may_hold
from data_prep.cleaning.text_hygiene import Step
from data_prep.cleaning.text_measures import ANYTHING, NO_RULE, UNKNOWN, Measurer
from data_prep.reading.blocks import Block

MOJIBAKE, MARKUP_STEP = "mojibake", "markup"
PERSONAL, LINES = "personal data: ", "lines: "
SAME_TEXT = "same text"
_ASKS = {"line ends": LINE_END, "control characters": CONTROL, "invisible characters": INVISIBLE, "unicode form": FORM}
_TOLD_APART = LEAD | ADDRESS | NUMBER | CAPITAL  # signs that mean nothing in most texts: these are looked at once more (`_left_of`)
_SPACE = LINE_END | CONTROL | INVISIBLE | FORM | SPACING
_PLACES = {name: place for place, name in enumerate(MEASURES)}
Changed = Callable[[str, str, str], None]
Taken = Callable[[str, list[str]], None]


class DocumentFilter:
    """The filters of one shard: it remembers the texts that it has seen.

    Args:
        filters: the whole settings, as `read_filters` gives them.
        repeated: hashes of the short lines that many documents of the corpus share.
    """

    def __init__(self, filters: Mapping[str, Any], repeated: Set[int] = frozenset()) -> None:
        self._key = pickle.dumps(dict(filters))
        self.settings, self._dirt = _prepared(self._key)
        self._repeated = repeated
        self._search = self._line_search()
        self._seen: set[int] = set()
        self._repairs: dict[tuple[str, ...], int] = {}

    def dirt(self, data: bytes) -> int:
        """What a text (UTF-8) may need, for `repair`; see `Measurer.dirt`."""
        return self._dirt.dirt(data) | self._search.always | (LEAD if WRONG_PAGE.search(data) else 0)

    def needs(self, block: Block, language: str | None, steps: Mapping[str, Step]) -> Iterator[int | tuple[str, str] | None]:
        """For each document of a block what it may need, for `repair`; None where it surely stays as it is, reason and detail where it surely goes,
        as `repair` and `refuses` would say.

        A text that stays is remembered.  Asks for the next one when this one has been dealt with, since equal texts are told by the order.
        """
        rules, measurer = self._rules(language)
        hard = self._of_repairs(steps)
        if _asks_for_wrong_places(rules):
            hard |= CAPITAL
        judged = None
        if hard != ANYTHING:
            thresholds = limits(rules, self.settings.max_hole_share)
            surely_hard = hard & ~(MARKUP | _TOLD_APART)
            judged = measurer.judge(block.text, block.offsets, surely_hard, thresholds, measures=self.settings.same_text > 0)
        if judged is None:
            yield from map(self.dirt, block.texts())
            return
        dirt, refused, values = judged
        self._search.found_of_all(block.text, block.offsets, hard & ~_TOLD_APART, dirt)
        for found in WRONG_PAGE.finditer(block.text) if hard & LEAD else ():
            dirt[np.searchsorted(block.offsets, found.start(), "right") - 1] |= LEAD
        for number in np.flatnonzero(dirt & np.uint32(hard & _TOLD_APART)).tolist():
            dirt[number] = self._left_of(int(dirt[number]), block.data(number), hard)
        refused[dirt & np.uint32(hard | self._of_lines) != 0] = UNKNOWN
        text, least = memoryview(block.text), self.settings.same_text
        before = int(self.settings.max_hole_share is not None)  # the threshold of holes, as in `limits`; a text that has one is hard
        of_each = (block.offsets[:-1], block.offsets[1:], refused, values, dirt)
        for start, end, number, value, bits in zip(*(array.tolist() for array in of_each)):
            if number == NO_RULE:
                seen = False
                if least and value >= least:
                    digest = xxhash.xxh3_64_intdigest(text[start:end])
                    seen = digest in self._seen
                    self._seen.add(digest)
                yield bits if seen else None
            elif number >= before:
                yield self._said(rules[number - before], value)
            else:
                yield bits

    def _left_of(self, dirt: int, data: bytes, hard: int) -> int:
        """What a text may need, without the signs of wrong decoding and of personal data that surely mean nothing."""
        if dirt & LEAD and not mojibake.may_repair(data):
            dirt &= ~LEAD
        if dirt & CAPITAL and not mojibake.leftovers(data.decode()):
            dirt &= ~CAPITAL
        # Repairs may join the digits of a number, and without some lines other words stand before it.
        changes = hard & (_SPACE | LEAD | MARKUP | HOLE) | self._of_lines
        if dirt & (ADDRESS | NUMBER) and not dirt & changes and not may_hold(data, self.settings.personal_data):
            dirt &= ~(ADDRESS | NUMBER)
        return dirt

    def may_repair(self, dirt: int, steps: Mapping[str, Step]) -> bool:
        """Whether `repair` could do anything to a text."""
        return dirt & (self._of_repairs(steps) | self._of_lines) != 0 or self._of_repairs(steps) == ANYTHING

    def _of_repairs(self, steps: Mapping[str, Step]) -> int:
        """The bits of what is repaired other than lines; `ANYTHING` where every text must be tried."""
        if (names := tuple(steps)) not in self._repairs:
            self._repairs[names] = self._bits_of_repairs(steps)
        return self._repairs[names]

    def _bits_of_repairs(self, steps: Mapping[str, Step]) -> int:
        settings = self.settings
        if any(not rule.triggers for rule in settings.lines) or not _ASKS.keys() >= set(list(steps)[:-1]):
            return ANYTHING
        bits = _SPACE | (LEAD if settings.mojibake else 0) | (MARKUP if settings.markup else 0)
        return bits | (HOLE if settings.max_hole_share is not None else 0) | (ADDRESS | NUMBER if settings.personal_data else 0)

    @cached_property
    def _of_lines(self) -> int:
        """The bits of rules about lines and phrases."""
        return sum(self._dirt.group_bits.values()) | self._search.always

    def _line_search(self) -> LineSearch:
        bits, settings = self._dirt.group_bits, self.settings
        rules = [rule for rule in settings.lines if rule.triggers]
        whole = {bits[rule.name]: rule.phrases for rule in rules if rule.match == WHOLE}
        contains: dict[int, Sequence[Sequence[str]]] = {bits[rule.name]: rule.groups for rule in rules if rule.match == CONTAINS}
        contains |= {bits[f"phrases: {name}"]: [[phrase.lower() for phrase in phrases]] for name, phrases in settings.phrases.items()}
        in_threes = sum(bits[rule.name] for rule in rules if rule.match == WHOLE and rule.run > 2)
        max_words = (settings.repeated_lines or {}).get("max_words", math.inf)
        return LineSearch(whole, contains, REPEATED, self._repeated, max_words, in_threes)

    def repair(self, text: str, dirt: int, steps: Mapping[str, Step], changed: Changed, taken: Taken) -> tuple[str, str | None]:
        """The repaired text, and a reason to drop it for what was found on the way.

        Args:
            dirt: of it.
            steps: of hygiene, in order; the last is that of white space.
            changed: told of each step that changed something, its text before and after.
            taken: told of each kind of line and the lines that were taken.
        """
        if self.settings.mojibake and dirt & LEAD and (repaired := mojibake.repair(text)) != text:
            changed(MOJIBAKE, text, repaired)
            text = repaired
            dirt = self.dirt(text.encode())
        was = text
        *before, (last, white_space) = steps.items()
        for reason, step in before:
            if reason not in _ASKS or dirt & _ASKS[reason]:
                text = _done(reason, step, text, changed)
        if self.settings.markup and dirt & MARKUP:
            text = _done(MARKUP_STEP, without_markup, text, changed)
        if dirt & _SPACE or text is not was:
            text = _done(last, white_space, text, changed)
        if text is not was:
            dirt |= self.dirt(text.encode())  # what was taken out may have parted a number or a phrase
        was = text
        if dirt & self._of_lines:
            dirt = self._search.found(text.encode(), dirt)
        refused = self._phrase(text, dirt)
        text = self._lines(text, dirt, changed, taken)
        if self.settings.personal_data and dirt & (ADDRESS | NUMBER) and may_hold(text.encode(), self.settings.personal_data):
            hidden, found, dropped = masked(text, self.settings.personal_data, self.settings.replacement)
            if found:
                # No sample of these: it would be the very thing that is to be kept out.
                for kind in found:
                    changed(PERSONAL + kind, "", "")
                text, refused = hidden, refused or (PERSONAL + dropped if dropped else None)
        if text is not was:
            text = white_space(text)
        return text, refused

    def to_show(self, text: str) -> str:
        """A text, or a part of one, as it may be kept to be read: without the personal data that are not to stay, also where they come before that step."""
        kinds = self.settings.personal_data
        return masked(text, kinds, self.settings.replacement)[0] if kinds and may_hold(text.encode(), kinds) else text

    def refuses(self, data: bytes, language: str | None, dirt: int = ANYTHING) -> tuple[str, str] | None:
        """Reason and detail why a repaired text (UTF-8) does not pass the rules for its language, or was in the shard before; None where it passes."""
        return next(self.reasons(data, language, dirt), None)

    def reasons(self, data: bytes, language: str | None, dirt: int = ANYTHING) -> Iterator[tuple[str, str]]:
        """All of them, in the order in which they are asked."""
        rules, measurer = self._rules(language)
        words = 1_000_000.0
        if rules or self.settings.same_text or self.settings.max_hole_share is not None:
            measures = measurer.measure(data)
            words = measures.words
            if self.settings.max_hole_share is not None and measures.hole_share > self.settings.max_hole_share:
                yield "holes", f"{measures.holes:.0f} of U+FFFD"
            wrong = mojibake.leftovers(data.decode()) / max(words, 1) if dirt & CAPITAL and _asks_for_wrong_places(rules) else 0
            values = (*measures, measures.ended_lines, wrong)  # as MEASURES names them
            for rule in rules:
                # Few values are beyond a threshold, so that is looked at before whether the rule asks.
                value = values[_PLACES[rule.measure]]
                if rule.refuses(value) and rule.asks(measures):
                    yield self._said(rule, value)
        if self.settings.same_text and words >= self.settings.same_text:
            digest = xxhash.xxh3_64_intdigest(data)
            if digest in self._seen:
                yield SAME_TEXT, "was in this file before"
            self._seen.add(digest)

    @staticmethod
    def _said(rule: Rule, value: float) -> tuple[str, str]:
        return rule.name, f"{rule.measure} {value:.4g}"

    def blocks(self, fields: Mapping[str, Any]) -> str | None:
        """The blocked site or address that a document is from; None if it is from none."""
        if self.settings.blocked_urls is None or not isinstance(url := fields.get(self.settings.blocked_urls["key"]), str):
            return None
        return blocked_by(url, self._blocked)

    @cached_property
    def _blocked(self) -> frozenset[str]:
        assert self.settings.blocked_urls is not None
        return frozenset(
            _plain_address(line)
            for file in self.settings.blocked_urls["files"]
            for line in _lines_of(Path(file))
            if line.strip() and not line.startswith("#")
        )

    def _rules(self, language: str | None) -> tuple[tuple[Rule, ...], Measurer]:
        return _rules_of(self._key, language)

    def _phrase(self, text: str, dirt: int) -> str | None:
        for name, phrases in self.settings.phrases.items():
            if not dirt & self._dirt.group_bits[f"phrases: {name}"]:
                continue
            small = text.lower()  # a phrase of one word is known by its beginning (`_prepared`), one of several by a later word
            if any(phrase in small if " " in phrase else begins_a_word(phrase, small) for phrase in map(str.lower, phrases)):
                return name
        return None

    def _lines(self, text: str, dirt: int, changed: Changed, taken: Taken) -> str:
        rules = [rule for rule in self.settings.lines if not rule.triggers or dirt & self._dirt.group_bits[rule.name]]
        few = self.settings.max_hole_share
        holes = few is not None and dirt & HOLE != 0 and text.count("\ufffd") <= few * len(text)
        repeated = self._repeated if dirt & REPEATED else frozenset()
        if not (rules or holes or repeated):
            return text
        max_words = (self.settings.repeated_lines or {}).get("max_words", math.inf)
        left, gone = without_lines(text, rules, repeated=repeated, max_words=max_words, holes=holes)
        for name, lines in gone.items():
            changed(LINES + name, "\n".join(lines), "")
            taken(LINES + name, lines)
        return left


# Shards of one run have the same settings: to make these again for each of many small files would take longer than the files.
@lru_cache(maxsize=4)
def _prepared(filters: bytes) -> tuple[FilterSettings, Measurer]:
    """Settings, and what finds the texts that they may be for."""
    settings = settings_for(pickle.loads(filters), None)
    return settings, Measurer((), _triggers(settings))


def _triggers(settings: FilterSettings) -> dict[str, Set[str]]:
    """The words of which a text must have one before its lines and phrases are looked at."""
    triggers: dict[str, Set[str]] = {rule.name: rule.triggers for rule in settings.lines if rule.triggers}
    for name, phrases in settings.phrases.items():
        # The first word of several may be the end of a longer one in a text, and is no beginning of a word there.
        triggers[f"phrases: {name}"] = {max(phrase.split()[1:] or [phrase], key=len) + "*" for phrase in phrases}
    return triggers


@lru_cache(maxsize=256)
def _rules_of(filters: bytes, language: str | None) -> tuple[tuple[Rule, ...], Measurer]:
    settings = settings_for(pickle.loads(filters), language)
    return settings.rules, Measurer(settings.stop_words, _triggers(settings))


def _asks_for_wrong_places(rules: Sequence[Rule]) -> bool:
    return any(rule.measure == WRONG_PLACES for rule in rules)


def _lines_of(path: Path) -> list[str]:
    """Of a list, which may be larger than files of settings are."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{error.object[error.start]:02x} at position {error.start + 1}"
        raise ValueError(f"blocked_urls: {path} is no UTF-8: {wrong}; expected one site or address a line") from error


def blocked_by(url: str, blocked: Set[str]) -> str | None:
    """The site, one of those above it, or the beginning of the address that is in a list; None if none is."""
    address = _plain_address(url)
    site, _, path = address.partition("/")
    labels = site.split(".")
    for first in range(len(labels) - 1):
        if (above := ".".join(labels[first:])) in blocked:
            return above
    parts = path.split("/")
    return next((known for end in range(1, len(parts) + 1) if (known := "/".join([site, *parts[:end]])) in blocked), None)


def _plain_address(url: str) -> str:
    """Site and path in small letters, without the scheme, `www.`, a port, a question and a slash at the end."""
    url = url.strip()
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        site = (parts.hostname or "").removeprefix("www.")
    except ValueError:
        return url.lower()
    return f"{site}{parts.path}".rstrip("/").lower()


def _done(reason: str, step: Step, text: str, changed: Changed) -> str:
    repaired = step(text)
    if repaired != text:
        changed(reason, text, repaired)
        return repaired
    return text
