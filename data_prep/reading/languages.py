"""Language codes: ISO 639-1 and 639-3, with an optional script, in any spelling (sl, slv, sr-Latn, srp_Cyrl)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

_TABLE = Path(__file__).with_name("iso639.tsv")
_CODE = re.compile(r"([a-z]{2,3})(?:[-_][A-Za-z]+)*")
_SCRIPT = re.compile(r"[-_]([A-Z][a-z]{3})(?![A-Za-z])")

# Languages that identifiers take for each other, by group, with the scripts that each is written in.
Groups = Mapping[str, Mapping[str, Sequence[str]]]
CLOSE_GROUPS: Groups = {
    "Bosnian, Croatian, Montenegrin, Serbian": {
        "bs": ["Latn", "Cyrl"],
        "cnr": ["Latn", "Cyrl"],
        "hr": ["Latn"],
        "sr": ["Latn", "Cyrl"],
        "sh": ["Latn", "Cyrl"],  # Serbo-Croatian, what lid.176 calls much of them
    }
}


def are_close(one: str, other: str) -> bool:
    """Whether two codes are of one language, or of two of a group that identifiers take for each other."""
    codes = {language_code(one).language, language_code(other).language}
    return len(codes) == 1 or any(codes <= {language_code(code).language for code in group} for group in CLOSE_GROUPS.values())


class LanguageCode(NamedTuple):
    """A language by its three letters (ISO 639-3), and a script (ISO 15924); "" for any script."""

    language: str
    script: str


@cache
def _rows() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Two letters -> three letters, and of a macrolanguage those of its members."""
    lines = [line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {short: (code, tuple(members[0].split()) if members else ()) for short, code, *members in lines}


@cache
def _short_codes() -> dict[str, str]:
    return {code: short for short, (code, _) in _rows().items()}


def is_language(code: str) -> bool:
    """Whether a text is a code of ISO 639, perhaps with more behind a dash or an underscore (sr-Latn, srp_Latn); every code of three letters passes."""
    found = _CODE.fullmatch(code)
    return found is not None and (len(found[1]) == 3 or found[1] in _rows())


def language_code(code: str) -> LanguageCode:
    """What a code says; what is none comes back as its own first part."""
    first = re.split("[-_]", code, maxsplit=1)[0]
    script = _SCRIPT.search(code)
    return LanguageCode(_rows()[first][0] if first in _rows() else first, script[1] if script else "")


def short_code(code: str) -> str:
    """The language alone, by two letters where ISO 639-1 has them."""
    language = language_code(code).language
    return _short_codes().get(language, language)


def plain_code(code: str) -> str:
    """The language by two letters where there are, with its script where the code has one (sl, sr-Latn), however it was written."""
    script = language_code(code).script
    return f"{short_code(code)}-{script}" if script else short_code(code)


def members(code: str) -> frozenset[str]:
    """The three letters of the languages that a macrolanguage stands for (sq: als, aln ...); empty of any other."""
    return frozenset(_rows().get(short_code(code), ("", ()))[1])
