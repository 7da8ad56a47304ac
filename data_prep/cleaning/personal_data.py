"""Personal data in text: found by patterns, confirmed by check digits, then masked or a reason to drop the document.

E-mail addresses, bank accounts (IBAN), cards, telephone numbers, IP addresses, and numbers of persons: EMSO/JMBG, codice fiscale, OIB, tax numbers.
What a pattern may be is configuration; what a checksum is, is here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import regex

from data_prep.cleaning import setting_values

_KEYS = {"pattern", "check", "action", "context", "without"}
MASK, DROP, KEEP = ACTIONS = ("mask", "drop", "keep")


@dataclass(frozen=True)
class Kind:
    """A kind of personal data.

    Attributes:
        context: words of which one must stand in the 40 characters before; none for numbers that their check digits prove.
        without: words of which none may stand there.
    """

    name: str
    pattern: regex.Pattern[str]
    check: Callable[[str], bool] | None
    action: str
    context: regex.Pattern[str] | None = None
    without: regex.Pattern[str] | None = None

    @cached_property
    def has_at(self) -> bool:
        """Whether every match of the pattern has an @, as far as its outermost level tells."""
        return _AT.search(_outermost(self.pattern.pattern)) is not None

    @cached_property
    def num_digits(self) -> int:
        """How many digits in a row every match of the pattern has, likewise."""
        return max(map(int, _DIGITS.findall(_outermost(self.pattern.pattern))), default=0)

    def is_meant(self, match: regex.Match[str]) -> bool:
        """Whether a match of the pattern is personal data, by its check digits and what stands before it."""
        if self.check is not None and not self.check(match[0]):
            return False
        start, end = max(0, match.start() - _CONTEXT), match.start()  # not a slice, whose first word may be the end of one
        if self.without is not None and self.without.search(match.string, start, end):
            return False
        return self.context is None or self.context.search(match.string, start, end) is not None


def kinds_of(settings: Mapping[str, Any]) -> tuple[Kind, ...]:
    """The kinds of the part `personal_data` of filter settings, in order.

    Raises:
        ValueError: if a pattern is not a valid regular expression, or an action or a check is unknown.
    """
    kinds = []
    for name, row in settings.items():
        if row is False or setting_values.mapping(f"personal_data: {name}", row, _KEYS).get("action", MASK) == KEEP:
            continue
        if row.get("action", MASK) not in ACTIONS:
            raise ValueError(f"personal_data: {name} has the action {row['action']!r}; expected {', '.join(ACTIONS)}")
        if row.get("check") not in (None, *CHECKS):
            raise ValueError(f"personal_data: {name} has the check {row['check']!r}; the known ones are {', '.join(CHECKS)}")
        if not isinstance(row.get("pattern"), str):
            raise ValueError(f"personal_data: {name} has no pattern; expected a regular expression")
        try:
            pattern = regex.compile(row["pattern"], regex.VERBOSE)
        except regex.error as error:
            raise ValueError(f"personal_data: the pattern of {name} is not a valid regular expression: {error}; correct it") from error
        if pattern.search("") is not None:
            raise ValueError(f"personal_data: the pattern of {name} matches the empty text; correct it")
        context, without = (_words(setting_values.texts(f"personal_data: {name}: {key}", row.get(key))) for key in ("context", "without"))
        kinds.append(Kind(name, pattern, CHECKS[row["check"]] if row.get("check") else None, row.get("action", MASK), context, without))
    return tuple(kinds)


def _words(words: Sequence[str]) -> regex.Pattern[str] | None:
    """A search for whole words, so that "hotel" is no "tel"; a star at the end of one stands for any ending."""
    if not words:
        return None
    each = (regex.escape(word.removesuffix("*")) + (r"\w*" if word.endswith("*") else r"(?!\w)") for word in words)
    return regex.compile(rf"(?<!\w)(?:{'|'.join(each)})", regex.IGNORECASE)


def masked(text: str, kinds: tuple[Kind, ...], replacement: str) -> tuple[str, dict[str, int], str | None]:
    """The text with a replacement for each piece of personal data, how many of each kind, and the kind that drops the text, if one does.

    Args:
        replacement: `{kind}` in it becomes the name of the kind.
    """
    found: dict[str, int] = {}
    dropped = None
    most_digits = max(map(len, _NUMBERS.findall(text)), default=0)
    for kind in kinds:

        def replace(match: regex.Match[str], kind: Kind = kind) -> str:
            if not kind.is_meant(match):
                return match[0]
            found[kind.name] = found.get(kind.name, 0) + 1
            return replacement.replace("{kind}", kind.name)

        if kind.num_digits <= max(most_digits, 3) and ("@" in text or not kind.has_at):
            text = kind.pattern.sub(replace, text)
        if kind.name in found and kind.action == DROP:
            dropped = dropped or kind.name
    return text, found, dropped


_CONTEXT = 40  # characters before a number in which a word must stand


def _outermost(pattern: str) -> str:
    """A pattern without its groups and sets, digits as 0; nothing of one that has alternatives."""
    outside = _ESCAPES_AND_SETS.sub(lambda found: "0" if found[0] == "[0-9]" else " ", pattern)
    while (less := _INNERMOST.sub(" ", outside)) != outside:
        outside = less
    return "" if any(sign in outside for sign in "|#") else outside


_ESCAPES_AND_SETS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]")
_INNERMOST = re.compile(r"\([^()]*\)")
_AT = re.compile(r"@(?!\s*[?*{])")
_DIGITS = re.compile(r"0\{(\d+)\}")
_NUMBERS = re.compile("[0-9]{4,}")


def _digits(text: str) -> list[int]:
    return [int(character) for character in text if character in "0123456789"]


def _iban(text: str) -> bool:
    """ISO 13616: the rest by 97 is 1, letters being 10 to 35 and the first four characters last."""
    plain = "".join(text.split()).upper()
    if not (15 <= len(plain) <= 34 and plain.isascii() and plain.isalnum()):
        return False
    moved = plain[4:] + plain[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


def _emso(text: str) -> bool:
    """EMSO, JMBG: day, month, three figures of the year, place, sex, and a check digit by 11."""
    digits = _digits(text)
    if len(digits) != 13:
        return False
    day, month = 10 * digits[0] + digits[1], 10 * digits[2] + digits[3]
    weights = (7, 6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)
    rest = sum(weight * digit for weight, digit in zip(weights, digits)) % 11
    return 1 <= day <= 31 and 1 <= month <= 12 and rest != 1 and digits[12] == (11 - rest) % 11


# Of the characters at the odd places (first, third, ...) of a codice fiscale: decree of 23 December 1976, table of the odd characters.
_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)


def _codice_fiscale(text: str) -> bool:
    plain = text.upper()
    if not (len(plain) == 16 and plain.isascii() and plain.isalnum()):
        return False
    values = [int(character) if character.isdigit() else ord(character) - ord("A") for character in plain[:15]]
    return chr(ord("A") + sum(_ODD[value] if place % 2 == 0 else value for place, value in enumerate(values)) % 26) == plain[15]


def _oib(text: str) -> bool:
    """ISO 7064, MOD 11,10."""
    digits = _digits(text)
    if len(digits) != 11:
        return False
    rest = 10
    for digit in digits[:10]:
        rest = (rest + digit) % 10 or 10
        rest = 2 * rest % 11
    return (11 - rest) % 10 == digits[10]


def _luhn(text: str) -> bool:
    digits = _digits(text)[::-1]
    doubled = (2 * digit - 9 if digit > 4 else 2 * digit for digit in digits[1::2])
    return len(set(digits)) > 1 and (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _slovene_tax(text: str) -> bool:
    """The Slovene tax number: weights 8 to 2, a check digit by 11 (Tax Procedure Act, ZDavP-2)."""
    digits = _digits(text)
    rest = sum(weight * digit for weight, digit in zip(range(8, 1, -1), digits)) % 11
    return len(digits) == 8 and digits[0] > 0 and rest != 0 and digits[7] == (11 - rest) % 10


def _public_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


def _long_public_address(text: str) -> bool:
    """One that is not a number of a section or a version, by a part above any month and most chapters."""
    return _public_address(text) and max(map(int, text.split("."))) > 31


# Dates in either order, two of them in a row, years, and numbers of four and four digits (ISSN): as many digits as a telephone number has.
_DATE = r"(?:[0-3]?[0-9][./ -]{1,2}[01]?[0-9][./ -]{1,2}(?:1[5-9]|20)?[0-9]{2}|(?:1[5-9]|20)[0-9]{2}[./-][01]?[0-9][./-][0-3]?[0-9])"
_NO_TELEPHONE = re.compile(rf"{_DATE}\.?(?:[ ./-]{{1,3}}{_DATE})?|[0-9]{{4}}-[0-9]{{4}}")


def _telephone(text: str) -> bool:
    """Eight to fifteen digits, as the numbering plan has (E.164), not one repeated, and no date."""
    digits = _digits(text)
    return 8 <= len(digits) <= 15 and len(set(digits)) > 2 and not _NO_TELEPHONE.fullmatch(text.strip("(). "))


CHECKS: dict[str, Callable[[str], bool]] = {
    "iban": _iban,
    "emso": _emso,
    "codice-fiscale": _codice_fiscale,
    "oib": _oib,
    "luhn": _luhn,
    "slovene-tax": _slovene_tax,
    "public-address": _public_address,
    "long-public-address": _long_public_address,
    "telephone": _telephone,
}
