"""What is known of a language by its code: name, family, script, and whether XLM-R was pretrained on it (`languages.tsv`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("languages.tsv")
UNKNOWN = "unknown"
CODE = r"[a-z]{2,3}(?:[-_][A-Za-z]+)*?"  # slv, sl, slv_Latn, be-x-old: as the sets' publishers write them


@dataclass(frozen=True)
class Language:
    """One language in one script.

    Attributes:
        code: ISO 639-3 where the table has it, else as it was asked for.
        is_head: whether it is of those of XLM-R ("head" in OFA; the others are "tail").
    """

    code: str
    name: str
    family: str
    script: str
    is_head: bool


@dataclass(frozen=True)
class _Row:
    code: str
    short: str
    name: str
    family: str
    scripts: tuple[str, ...]


@cache
def _rows() -> dict[str, _Row]:
    lines = [line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [_Row(code, short, name, family, tuple(scripts.split())) for code, short, name, family, scripts in lines]
    return {row.code: row for row in rows} | {row.short: row for row in rows if row.short != "-"}


def language(code: str) -> Language:
    """A language by ISO 639-3 or 639-1, with or without its script behind `_` or `-`; of one that is not in the table, that it is not.

    Script and head are those of the code's own script, else of the language's first.
    """
    short, _, rest = re.sub("-", "_", code).partition("_")
    row = _rows().get(short)
    if row is None or (rest and not re.fullmatch(r"[A-Z][a-z]{3}", rest)):
        return Language(code, code, UNKNOWN, rest if re.fullmatch(r"[A-Z][a-z]{3}", rest) else UNKNOWN, is_head=False)
    script = next((entry for entry in row.scripts if entry.rstrip("*") == rest), None) or (rest or row.scripts[0])
    return Language(row.code, row.name, row.family, script.rstrip("*"), is_head=script.endswith("*"))


def canonical(code: str) -> str:
    """The code that files of evaluation data have: three letters where the table knows them, the script as it was given."""
    short, dash, rest = re.sub("-", "_", code).partition("_")
    row = _rows().get(short)
    return code if row is None or (rest and not re.fullmatch(r"[A-Z][a-z]{3}", rest)) else f"{row.code}{dash}{rest}"
