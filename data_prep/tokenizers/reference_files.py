"""Reference data of the tokenizer report: parallel sentences, and a lexicon of one language.

Sentences are tab-separated columns that the first line names, or the rows that `eval.prepare` makes of FLORES; words are in columns of a file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

_OF_THE_ROW = ("id", "group", "split")  # what a row of an evaluation set has beside its languages


def read_parallel(path: Path, languages: Sequence[str] = ()) -> dict[str, list[str]]:
    """Language -> sentences, those of a line in all languages; lines with an empty cell are left out.

    Args:
        path: tab-separated columns, or with the ending .jsonl a JSON object in each line; either may be gzipped.
        languages: columns by name; all where none is given.

    Raises:
        ValueError: if the file is missing, has no such column, a line of another form, or no sentence.
    """
    if not path.is_file():
        raise ValueError(f"the parallel text {path} does not exist")
    is_rows = path.name.removesuffix(".gz").endswith(".jsonl")
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="\n")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8", newline="\n") as lines
        ):
            texts = [line.rstrip("\r\n") for line in lines]
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        expected = "one JSON object in each line" if is_rows else "tabs between columns"
        raise ValueError(f"the parallel text {path} cannot be read: {error}; expected UTF-8 text with {expected}") from error
    header, rows = _json_rows(path, texts) if is_rows else _columns(path, texts)
    wanted = list(languages) or header
    if unknown := [language for language in wanted if language not in header]:
        where = "row" if is_rows else "line"
        raise ValueError(f"{path} has no column {', '.join(unknown)}; its first {where} names {', '.join(header)}")
    places = [header.index(language) for language in wanted]
    full = [row for row in rows if all(row[place].strip() for place in places)]
    if not full:
        raise ValueError(f"{path} has no line with text in {', '.join(wanted)}")
    return {language: [row[place] for row in full] for language, place in zip(wanted, places)}


def _columns(path: Path, lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    header, *rows = [line.split("\t") for line in lines] or [[]]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(f"{path}, line {number} has {len(row)} columns; expected the {len(header)} of the first line")
    return header, rows


def _json_rows(path: Path, lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    header: list[str] = []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} is not valid JSON: {error}; expected one object in each line") from error
        texts = (
            {}
            if not isinstance(row, dict)
            else {key: text for key, text in row.items() if isinstance(text, str) and key not in _OF_THE_ROW}
        )
        header = header or list(texts)
        if not texts or set(texts) != set(header):
            raise ValueError(
                f"{path}, line {number} has text in {', '.join(texts) or 'nothing'}; expected {', '.join(header) or 'languages'}"
            )
        rows.append([texts[language] for language in header])
    return header, rows


def read_lexicon(path: Path, columns: Sequence[int] = (1,)) -> frozenset[str]:
    """All words in some columns of a tab-separated file, in lower case.

    Args:
        columns: counted from 1; a line without one of them is skipped there.

    Raises:
        ValueError: if the file is missing, no UTF-8, or has no word in those columns.
    """
    if not path.is_file():
        raise ValueError(f"the lexicon {path} does not exist")
    if any(column < 1 for column in columns):
        raise ValueError(f"--lexicon-columns {' '.join(map(str, columns))}: columns count from 1")
    words: set[str] = set()
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else open(path, encoding="utf-8-sig") as lines:
            for line in lines:
                cells = line.rstrip("\r\n").split("\t")
                words.update(cells[column - 1].strip().lower() for column in columns if column <= len(cells))
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"the lexicon {path} cannot be read: {error}; expected UTF-8 text with tabs between columns") from error
    words.discard("")
    if not words:
        raise ValueError(f"the lexicon {path} has no word in column {' or '.join(map(str, columns))}; name others with --lexicon-columns")
    return frozenset(words)
