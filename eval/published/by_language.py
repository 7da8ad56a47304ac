"""Sets that have a file, or several, for each of many languages: which languages a source has, and the rows of words and texts in their files."""

from __future__ import annotations

import fnmatch
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from data_prep.reading.evaluation_sets import EvaluationSet, RowFile
from eval.published.files import PublishedFile

LANGUAGE = "{language}"
_NO_TEXT = "_"  # UD, where a treebank's text may not be passed on; and a column that says nothing
# WikiAnn as the Hugging Face hub has it: numbers for labels.
_WIKIANN = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
Row = dict[str, Any]


def of_each_language(rows: RowFile, of: EvaluationSet, source: Path) -> list[tuple[RowFile, tuple[str, ...]]]:
    """A file of rows for each language that a source has, with the archives that may hold it; itself where it is of none."""
    if LANGUAGE not in rows.file:
        return [(rows, of.archives)]
    found = []
    for code in _languages(rows, source):
        name = canonical(code)
        counts = {split: rows.counts[f"{name}/{split}"] for split in rows.patterns if f"{name}/{split}" in rows.counts}
        patterns = {split: tuple(pattern.replace(LANGUAGE, code) for pattern in these) for split, these in rows.patterns.items()}
        identity, group = (template and template.replace(LANGUAGE, name) for template in (rows.identity, rows.group))
        one = replace(rows, file=rows.file.replace(LANGUAGE, name), patterns=patterns, counts=counts, identity=str(identity), group=group)
        found.append((one, tuple(archive.replace(LANGUAGE, code) for archive in of.archives)))
    return found


def _languages(rows: RowFile, source: Path) -> list[str]:
    """Codes in the names of the files."""
    names = [f"/{(Path(root) / name).relative_to(source).as_posix()}" for root, _, files in os.walk(source) for name in files]
    patterns = [re.compile(_named(pattern)) for these in rows.patterns.values() for pattern in these]
    return sorted({match["language"] for name in names for pattern in patterns if (match := pattern.fullmatch(name))})


def _named(pattern: str) -> str:
    """A pattern of names as a regular expression whose group is the language; of a member of an archive that of the archive."""
    archive = re.match(r"(.*\.tar\.gz)/", pattern)
    parts = (archive[1] if archive else pattern).split(LANGUAGE)
    plain = [fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z") for part in parts]
    # A name that stands twice in a pattern (en/train-en.tsv) is the same language both times.
    return f"(?P<language>{CODE})".join(plain[:2]) + "".join(f"(?P=language){part}" for part in plain[2:])


def labelled_sentences(file: PublishedFile, raw: Iterator[tuple[int, Row]] | None) -> Iterator[tuple[str, Row]]:
    """Sentences with their words and labels, each with its place.

    CoNLL-U (syntactic words and their universal part of speech), a word, a tab and a label a line (also `en:word`, as XTREME's), or rows
    with `tokens` and `ner_tags`.

    Args:
        raw: rows of a file that has columns (Parquet, JSON); None for lines.

    Raises:
        ValueError: if a line or row has not this form.
    """
    if raw is not None:
        for number, row in raw:
            place = f"row {number} of {file.name}"
            yield place, {"line": number, "words": _column(row, "tokens", place), "labels": _names(_column(row, "ner_tags", place), place)}
        return
    conllu = file.name.removesuffix(".gz").endswith((".conllu", ".conll"))
    for number, lines in enumerate(_blocks(file), start=1):
        pairs = [_conllu(line, place, file) if conllu else _tabbed(line, place, file) for place, line in lines]
        words = [pair for pair in pairs if pair is not None]
        if not words or all(word == _NO_TEXT for word, _ in words):
            continue
        yield (
            f"line {lines[0][0]} of {file.name}",
            {"line": number, "words": [w for w, _ in words], "labels": [label for _, label in words]},
        )


def _column(row: Row, name: str, place: str) -> list[Any]:
    value = row.get(name)
    if value is None:
        raise ValueError(f"{place} has no {name}; it has {', '.join(sorted(map(str, row)))}: is it another set?")
    return list(value)


def _names(labels: Sequence[Any], place: str) -> list[str]:
    if wrong := [label for label in labels if isinstance(label, int) and not 0 <= label < len(_WIKIANN)]:
        raise ValueError(f"{place} has the label {wrong[0]}; expected a number below {len(_WIKIANN)}")
    return [_WIKIANN[label] if isinstance(label, int) else str(label) for label in labels]


def _blocks(file: PublishedFile) -> Iterator[list[tuple[int, str]]]:
    """Lines between blank ones, numbered."""
    block: list[tuple[int, str]] = []
    with io.TextIOWrapper(file.open(), encoding="utf-8-sig", newline="\n") as stream:
        try:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    block.append((number, line.rstrip("\r\n")))
                elif block:
                    yield block
                    block = []
        except UnicodeDecodeError as error:
            raise ValueError(f"{file.name} is not UTF-8: {error}; fetch it again") from error
    if block:
        yield block


def _conllu(line: str, number: int, file: PublishedFile) -> tuple[str, str] | None:
    """A syntactic word; None for comments, for words that are written together and for those that are not written."""
    if line.startswith("#"):
        return None
    cells = line.split("\t")
    if len(cells) != 10 or not re.fullmatch(r"\d+([-.]\d+)?", cells[0]):
        raise ValueError(f"line {number} of {file.name} is not a line of CoNLL-U; expected its ten columns")
    return ("".join(cells[1].split()) or _NO_TEXT, cells[3]) if cells[0].isdecimal() else None


def _tabbed(line: str, number: int, file: PublishedFile) -> tuple[str, str] | None:
    word, tab, label = line.rstrip().rpartition("\t")
    if not tab or not label.strip() or "\t" in word:
        raise ValueError(f"line {number} of {file.name} is not a labelled word; expected a word, a tab and its label")
    if "." not in Path(file.name).name:  # XTREME's `train`, `dev` and `test` name the language before each word
        word = word.partition(":")[2]
    word = "".join(word.split())  # spaces that are a word's own (U+00A0) make none
    return (word, label.strip()) if word else None


def labelled_texts(file: PublishedFile) -> Iterator[tuple[str, Row]]:
    """Texts of Taxi1500: a number, a label and a verse a line, with a tab between.

    Raises:
        ValueError: if a line has other columns.
    """
    for block in _blocks(file):
        for number, line in block:
            cells = line.split("\t")
            if len(cells) != 3:
                raise ValueError(f"line {number} of {file.name} has {len(cells)} columns; expected a number, a label and a verse")
            if number == 1 and cells[1].strip().lower() in ("classification", "label"):
                continue
            if cells[2].strip():
                yield (
                    f"line {number} of {file.name}",
                    {"line": number, "verse": cells[0].strip(), "label": cells[1].strip(), "text": cells[2].strip()},
                )


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
