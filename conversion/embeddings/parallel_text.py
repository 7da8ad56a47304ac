"""Sentences with their translations, from a table of text."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

PARALLEL_SUFFIXES = (".tsv", ".txt", ".tsv.gz", ".txt.gz")


class ParallelText:
    """Pairs of a source sentence and its translation; can be read again and again, and holds none of them.

    One pair a line with a tab between.  A file with more columns needs a header that names them.

    Args:
        path: a file with a suffix of `PARALLEL_SUFFIXES`.
        columns: the names of the source's and the target's column; None for two columns without a header.

    Raises:
        ValueError: if the file is missing, of another kind or without these columns; while reading, if a line has another number of
            columns, and at the end if no line has two sentences.
    """

    def __init__(self, path: Path, columns: tuple[str, str] | None = None) -> None:
        self.path, self.columns = Path(path), columns
        if not self.path.is_file():
            raise ValueError(f"the parallel text {path} does not exist")
        if not self.path.name.endswith(PARALLEL_SUFFIXES):
            raise ValueError(f"the parallel text {path} is of an unknown kind; expected a name ending in {', '.join(PARALLEL_SUFFIXES)}")
        if columns is not None:
            header = next(self._lines(), (0, []))[1]
            for name in columns:
                if name not in header:
                    raise ValueError(
                        f"{path} has no column {name!r}, only {', '.join(map(repr, header))}; name two with --parallel-columns"
                    )

    def __iter__(self) -> Iterator[tuple[str, str]]:
        places, num_columns, is_empty = (0, 1), 2, True
        for number, fields in self._lines():
            if number == 1 and self.columns is not None:
                places, num_columns = (fields.index(self.columns[0]), fields.index(self.columns[1])), len(fields)
                continue
            if len(fields) != num_columns:
                hint = "" if self.columns else " (for more columns than two, name them in the first line and with --parallel-columns)"
                raise ValueError(f"{self.path}, line {number} has {len(fields)} columns; expected {num_columns} with tabs between{hint}")
            source, target = (fields[place].strip() for place in places)
            if source and target:
                is_empty = False
                yield source, target
        if is_empty:
            raise ValueError(f"there is no pair of sentences in {self.path}; give a file with text")

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        with gzip.open(self.path, "rt", encoding="utf-8") if self.path.suffix == ".gz" else open(self.path, encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line.rstrip("\n").split("\t")
