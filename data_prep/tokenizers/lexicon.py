"""A list of the words of a language, from a file with columns."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path


def read_lexicon(path: Path, columns: Sequence[int] = (1,)) -> frozenset[str]:
    """All words in some columns of a tab-separated file, in lower case.

    Args:
        columns: counted from 1; a line without one of them is passed over there.

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
