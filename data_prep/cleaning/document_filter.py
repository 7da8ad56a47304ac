"""A document through the filters: repaired, lines that are not its own and personal data taken out, and measured against the rules.

What a text may need is found in one pass over its bytes (`Measurer.dirt`); most texts need next to nothing, and no expression is tried on those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import xxhash

from data_prep.cleaning import mojibake
from data_prep.cleaning.filter_settings import WRONG_PLACES, Rule, settings_for
from data_prep.cleaning.line_rules import without_lines
from data_prep.cleaning.markup import without_markup
from data_prep.cleaning.personal_data import masked
from data_prep.cleaning.text_hygiene import Step
from data_prep.cleaning.text_measures import (
    ADDRESS,
    ANYTHING,
    CAPITAL,
    CONTROL,
    FORM,
    HOLE,
    INVISIBLE,
    LEAD,
    LINE_END,
    MARKUP,
    NUMBER,
    SPACING,
    Measurer,
)

MOJIBAKE, MARKUP_STEP = "mojibake", "markup"
PERSONAL, LINES = "personal data: ", "lines: "
SAME_TEXT = "same text"
_ASKS = {"line ends": LINE_END, "control characters": CONTROL, "invisible characters": INVISIBLE, "unicode form": FORM}
_SPACE = LINE_END | CONTROL | INVISIBLE | FORM | SPACING
Changed = Callable[[str, str, str], None]
Taken = Callable[[str, list[str]], None]


class DocumentFilter:
    """The filters of one shard: it remembers the texts that it has seen.

    Args:
        filters: the whole settings, as `read_filters` gives them.
        repeated: hashes of the short lines that many documents of the corpus share.
    """

    def __init__(self, filters: Mapping[str, Any], repeated: Set[int] = frozenset()) -> None:
        self._filters = filters
        self.settings = settings_for(filters, None)
        self._repeated = repeated
        triggers = {rule.name: rule.triggers for rule in self.settings.lines if rule.triggers}
        for name, phrases in self.settings.phrases.items():
            triggers[f"phrases: {name}"] = {max(phrase.split(), key=len) + "*" for phrase in phrases}
        self._dirt = Measurer((), triggers)
        self._by_language: dict[str | None, tuple[tuple[Rule, ...], Measurer]] = {}
        self._seen: set[int] = set()

    def dirt(self, data: bytes) -> int:
        """What a text (UTF-8) may need, for `repair`; see `Measurer.dirt`."""
        return self._dirt.dirt(data)

    def may_repair(self, dirt: int, steps: Mapping[str, Step]) -> bool:
        """Whether `repair` could do anything to a text."""
        settings, wanted = self.settings, _SPACE
        wanted |= (
            (LEAD if settings.mojibake else 0) | (MARKUP if settings.markup else 0) | (HOLE if settings.max_hole_share is not None else 0)
        )
        wanted |= ADDRESS | NUMBER if settings.personal_data else 0
        for bit in self._dirt.group_bits.values():
            wanted |= bit
        always = bool(self._repeated) or any(not rule.triggers for rule in settings.lines)
        return always or dirt & wanted != 0 or not _ASKS.keys() >= set(list(steps)[:-1])

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
            dirt = self._dirt.dirt(text.encode())
        was = text
        *before, (last, white_space) = steps.items()
        for reason, step in before:
            if reason not in _ASKS or dirt & _ASKS[reason]:
                text = _done(reason, step, text, changed)
        if self.settings.markup and dirt & MARKUP:
            text = _done(MARKUP_STEP, without_markup, text, changed)
        if dirt & _SPACE or text is not was:
            text = _done(last, white_space, text, changed)
        was = text
        refused = self._phrase(text, dirt)
        text = self._lines(text, dirt, changed, taken)
        if self.settings.personal_data and dirt & (ADDRESS | NUMBER):
            hidden, found, dropped = masked(text, self.settings.personal_data, self.settings.replacement)
            if found:
                # No sample of these: it would be the very thing that is to be kept out.
                for kind in found:
                    changed(PERSONAL + kind, "", "")
                text, refused = hidden, refused or (PERSONAL + dropped if dropped else None)
        if text is not was:
            text = white_space(text)
        return text, refused

    def refuses(self, data: bytes, language: str | None, dirt: int = ANYTHING) -> tuple[str, str] | None:
        """Reason and detail why a repaired text (UTF-8) does not pass the rules for its language, or was in the shard before; None where it passes."""
        rules, measurer = self._rules(language)
        words = 1_000_000.0
        if rules or self.settings.same_text or self.settings.max_hole_share is not None:
            measures = measurer.measure(data)
            words = measures.words
            if self.settings.max_hole_share is not None and measures.hole_share > self.settings.max_hole_share:
                return "holes", f"{measures.holes:.0f} of U+FFFD"
            for rule in rules:
                if words < rule.from_words:
                    continue
                if rule.measure == WRONG_PLACES:
                    value = mojibake.leftovers(data.decode()) / max(words, 1) if dirt & CAPITAL else 0
                else:
                    value = getattr(measures, rule.measure)
                if rule.refuses(value):
                    return rule.name, f"{rule.measure} {value:.4g}"
        if self.settings.same_text and words >= self.settings.same_text:
            digest = xxhash.xxh3_64_intdigest(data)
            if digest in self._seen:
                return SAME_TEXT, "was in this file before"
            self._seen.add(digest)
        return None

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
            for line in Path(file).read_text(encoding="utf-8").splitlines()
            if line.strip() and not line.startswith("#")
        )

    def _rules(self, language: str | None) -> tuple[tuple[Rule, ...], Measurer]:
        if language not in self._by_language:
            settings = settings_for(self._filters, language)
            self._by_language[language] = settings.rules, Measurer(settings.stop_words)
        return self._by_language[language]

    def _phrase(self, text: str, dirt: int) -> str | None:
        for name, phrases in self.settings.phrases.items():
            if dirt & self._dirt.group_bits[f"phrases: {name}"] and any(phrase.lower() in text.lower() for phrase in phrases):
                return name
        return None

    def _lines(self, text: str, dirt: int, changed: Changed, taken: Taken) -> str:
        rules = [rule for rule in self.settings.lines if not rule.triggers or dirt & self._dirt.group_bits[rule.name]]
        few = self.settings.max_hole_share
        holes = few is not None and dirt & HOLE != 0 and text.count("\ufffd") <= few * len(text)
        if not (rules or holes or self._repeated):
            return text
        left, gone = without_lines(text, rules, repeated=self._repeated, holes=holes)
        for name, lines in gone.items():
            changed(LINES + name, "\n".join(lines), "")
            taken(LINES + name, lines)
        return left


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
