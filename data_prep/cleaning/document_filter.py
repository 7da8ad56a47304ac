"""The filters applied to one document: repairs, removal of boilerplate lines and personal data, then the document rules.

What a text may need is found in one pass over its bytes (`Measurer.noise`); most texts need next to nothing, and no expression is tried on those.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from data_prep.cleaning import mojibake
from data_prep.cleaning.code_points import ADDRESS, CONTROL, FORM, HOLE, INVISIBLE, LEAD, LINE_END, MARKUP, NUMBER, SPACING
from data_prep.cleaning.document_rules import Filter, Holes, SameText, Text, Texts, ngrams_of, refusals
from data_prep.cleaning.filter_settings import FilterSettings, read_filters, settings_for
from data_prep.cleaning.line_rules import without_lines
from data_prep.cleaning.personal_data import masked
from data_prep.cleaning.text_hygiene import Step, without_markup
from data_prep.cleaning.text_measures import Measurer

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
        self._key = pickle.dumps(dict(filters))
        self.settings = _settings_of(self._key, None)
        self._measurer = Measurer()
        self._repeated = repeated
        self._same_text = (SameText(SAME_TEXT, self.settings.same_text),) if self.settings.same_text else ()

    def noise(self, text: bytes, offsets: NDArray[np.int64] | None = None) -> list[int]:
        """What texts may need, for `repair`; see `Measurer.noise`."""
        return self._measurer.noise(text, offsets).tolist()

    def repair(self, text: str, noise: int, steps: Mapping[str, Step], changed: Changed, taken: Taken) -> tuple[str, str | None]:
        """The repaired text, and a reason to drop it for what was found on the way.

        Args:
            noise: of it.
            steps: of hygiene, in order; the last is that of white space.
            changed: told of each step that changed something, its text before and after.
            taken: told of each kind of line and the lines that were taken.
        """
        if (
            self.settings.mojibake
            and (noise & LEAD or mojibake.repair_code_page(text) is not text)
            and (repaired := mojibake.repair(text)) != text
        ):
            changed(MOJIBAKE, text, repaired)
            text = repaired
            noise = self.noise(text.encode())[0]
        was = text
        *before, (last, white_space) = steps.items()
        for reason, step in before:
            if reason not in _ASKS or noise & _ASKS[reason]:
                text = _done(reason, step, text, changed)
        if self.settings.markup and noise & MARKUP:
            text = _done(MARKUP_STEP, without_markup, text, changed)
        if noise & _SPACE or text is not was:
            text = _done(last, white_space, text, changed)
        if text is not was:
            noise |= self.noise(text.encode())[0]  # what was taken out may have parted a number
        was = text
        refused = next((rule.name for rule in self.settings.phrases if rule.reason(Text(text)) is not None), None)
        text = self._lines(text, noise, changed, taken)
        if self.settings.personal_data and (noise & (ADDRESS | NUMBER) or self._has_own_personal_data):
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
        """A text, or a part of one, as a sample may show it: without the personal data to be masked, even if it was removed before that step."""
        return masked(text, self.settings.personal_data, self.settings.replacement)[0]

    def refusals(self, texts: Sequence[str], languages: Sequence[str | None]) -> list[tuple[str, str] | None]:
        """Reason and detail why repaired texts do not pass the rules for their languages, or were in the shard before; None where one passes."""
        found: list[tuple[str, str] | None] = [None] * len(texts)
        for language in dict.fromkeys(languages):
            places = [place for place, of_text in enumerate(languages) if of_text == language]
            rules, measurer, ngrams = _rules_of(self._key, language)
            for place, refused in zip(places, refusals(rules, Texts([texts[place] for place in places], measurer, ngrams))):
                found[place] = refused
        left = [place for place, refused in enumerate(found) if refused is None]
        for place, refused in zip(left, refusals(self._same_text, Texts([texts[place] for place in left], self._measurer, ngrams_of(())))):
            found[place] = refused
        return found

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

    def _lines(self, text: str, noise: int, changed: Changed, taken: Taken) -> str:
        few = self.settings.max_hole_share
        holes = few is not None and noise & HOLE != 0 and text.count("\ufffd") <= few * len(text)
        if not (self.settings.lines or holes or self._repeated):
            return text
        max_words = (self.settings.repeated_lines or {}).get("max_words", math.inf)
        left, gone = without_lines(text, self.settings.lines, repeated=self._repeated, max_words=max_words, holes=holes)
        for name, lines in gone.items():
            changed(LINES + name, "\n".join(lines), "")
            taken(LINES + name, lines)
        return left

    @cached_property
    def _has_own_personal_data(self) -> bool:
        """Whether a pattern is not of the built-in ones, which find numbers and addresses."""
        return not {kind.pattern.pattern for kind in self.settings.personal_data} <= _built_in_patterns()


@cache
def _built_in_patterns() -> Set[str]:
    return {row["pattern"] for row in read_filters("standard")["personal_data"].values() if isinstance(row, dict)}


# Shards of one run have the same settings: to make these again for each of many small files would take longer than the files.
@lru_cache(maxsize=256)
def _settings_of(filters: bytes, language: str | None) -> FilterSettings:
    return settings_for(pickle.loads(filters), language)


@lru_cache(maxsize=256)
def _rules_of(filters: bytes, language: str | None) -> tuple[tuple[Filter, ...], Measurer, tuple[int, int]]:
    """The rules of a language, and what counts for them."""
    settings = _settings_of(filters, language)
    holes = () if settings.max_hole_share is None else (Holes("holes", "hole_share", max=settings.max_hole_share),)
    rules = (*holes, *settings.rules)
    return rules, Measurer(settings.stop_words), ngrams_of(rules)


def _lines_of(path: Path) -> list[str]:
    """Of a list, which may be larger than files of settings are."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{error.object[error.start]:02x} at position {error.start + 1}"
        raise ValueError(f"blocked_urls: {path} is not UTF-8: {wrong}; expected one site or address a line") from error


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
