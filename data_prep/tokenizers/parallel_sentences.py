"""Sentences in several languages, line by line: a tab-separated file whose first line names the columns."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path


def read_parallel(path: Path, languages: Sequence[str] = ()) -> dict[str, list[str]]:
    """Language -> sentences, those of a line in all languages; lines with an empty cell are left out.

    Args:
        languages: columns by name; all where none is given.

    Raises:
        ValueError: if the file is missing, has no such column, a line of another length, or no sentence.
    """
    if not path.is_file():
        raise ValueError(f"the parallel text {path} does not exist")
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="\n")
            if path.suffix == ".gz"
            else open(path, encoding="utf-8", newline="\n") as lines
        ):
            header, *rows = [line.rstrip("\r\n").split("\t") for line in lines] or [[]]
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"the parallel text {path} cannot be read: {error}; expected UTF-8 text with tabs between columns") from error
    wanted = list(languages) or header
    if unknown := [language for language in wanted if language not in header]:
        raise ValueError(f"{path} has no column {', '.join(unknown)}; its first line names {', '.join(header)}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(f"{path}, line {number} has {len(row)} columns; expected the {len(header)} of the first line")
    places = [header.index(language) for language in wanted]
    full = [row for row in rows if all(row[place].strip() for place in places)]
    if not full:
        raise ValueError(f"{path} has no line with text in {', '.join(wanted)}")
    return {language: [row[place] for row in full] for language, place in zip(wanted, places)}
