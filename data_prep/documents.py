"""Documents: the text of plain and JSON Lines files, one document at a time, with errors that name file and line.

A `.jsonl` line is one document, under `--text-key`.  So is a line of a `.txt` file, unless empty lines in it say that
documents may be longer: then `--document-separator` must tell.  Both may be compressed (`.gz`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from data_prep.progress import Progress

SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")
SEPARATORS = ("line", "blank-line", "file")
_REPORT_BYTES = 1 << 18


class Documents:
    """The documents of some files, in order; can be read any number of times, and never holds more than one.

    Documents of nothing but white space are left out and counted.  `num_documents`, `num_empty` and `text_bytes` (of
    UTF-8) speak of the last complete reading.

    Args:
        paths: files with a suffix of `SUFFIXES`.
        text_key: the key of the text in a JSON line.
        separator: what ends a document in a `.txt` file, one of `SEPARATORS`; None for a line where no line is empty.

    Raises:
        ValueError: if a file is missing or of another kind; while reading, if a line is no UTF-8, no JSON or has no text
            (naming the line), and at the end if there was no document at all.
    """

    def __init__(self, paths: Iterable[Path | str], *, text_key: str = "text", separator: str | None = None) -> None:
        self.paths = [Path(path) for path in paths]
        self.text_key = text_key
        self.separator = separator
        self.num_documents = self.num_empty = self.text_bytes = 0
        if separator is not None and separator not in SEPARATORS:
            raise ValueError(f"unknown document separator {separator!r}; the known ones are {', '.join(SEPARATORS)}")
        for path in self.paths:
            if not path.exists():
                raise ValueError(f"the input file {path} does not exist")
            if not path.is_file():
                raise ValueError(f"the input {path} is not a file; name the files in it one by one")
            if not path.name.endswith(SUFFIXES):
                raise ValueError(f"the input file {path} is of an unknown kind; expected a name ending in {', '.join(SUFFIXES)}")

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Documents:
        """The documents that a command line with `add_input_arguments` names."""
        return cls(arguments.input, text_key=arguments.text_key, separator=arguments.document_separator)

    def __iter__(self) -> Iterator[str]:
        return self.read()

    def read(self, label: str = "reading text") -> Iterator[str]:
        """Yield the text of each document, counting the bytes read from disk under a label for the user."""
        num_documents = num_empty = text_bytes = 0
        with Progress(label, total=sum(path.stat().st_size for path in self.paths), unit="B", is_bytes=True) as progress:
            for path in self.paths:
                lines = _read_lines(path, progress)
                texts = self._json_texts(path, lines) if path.name.endswith((".jsonl", ".jsonl.gz")) else self._plain_texts(path, lines)
                for text in texts:
                    if not text.strip():
                        num_empty += 1
                        continue
                    num_documents += 1
                    text_bytes += len(text.encode())
                    yield text
        if not num_documents:
            names = ", ".join(map(str, self.paths))
            raise ValueError(f"there is no text in {names} ({num_empty} empty documents); give files with text")
        self.num_documents, self.num_empty, self.text_bytes = num_documents, num_empty, text_bytes

    def _plain_texts(self, path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
        if self.separator in ("blank-line", "file"):
            yield from _joined(lines, ends_at_blank_line=self.separator == "blank-line")
            return
        has_text, empty = False, 0
        for number, line in lines:
            if not line.strip():
                empty = number if has_text else 0
            elif empty and self.separator is None:
                raise ValueError(
                    f"{path}, line {empty} is empty, so a document may be longer than a line; say with --document-separator"
                    f" what ends one ({', '.join(SEPARATORS)})"
                )
            else:
                has_text = True
                yield line

    def _json_texts(self, path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
        for number, line in lines:
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path}, line {number} is no JSON: {error.msg} at column {error.colno}; expected one object per line"
                ) from error
            if not isinstance(record, dict):
                raise ValueError(f"{path}, line {number} holds a JSON {type(record).__name__}; expected one object per line")
            if self.text_key not in record:
                raise ValueError(
                    f"{path}, line {number} has no key {self.text_key!r}, only {', '.join(map(repr, record)) or 'nothing'};"
                    " name the key of the text with --text-key"
                )
            text = record[self.text_key]
            if not isinstance(text, str):
                raise ValueError(f"{path}, line {number} holds a {type(text).__name__} under {self.text_key!r}; expected a string")
            try:
                text.encode()
            except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair (\ud83d), which no file or tokenizer can hold
                raise ValueError(
                    f"{path}, line {number} holds half a surrogate pair, which is no Unicode text; repair or remove the line"
                ) from error
            yield text


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --input and the arguments of `add_format_arguments`."""
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help=f"text files ({', '.join(SUFFIXES)})")
    add_format_arguments(parser)


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --text-key and --document-separator, the same for every command that reads documents."""
    parser.add_argument("--text-key", default="text", help="key of the text in a .jsonl line (default: text)")
    parser.add_argument(
        "--document-separator",
        choices=SEPARATORS,
        help="what ends a document in a .txt file (default: a line, in a file without empty lines)",
    )


def batches(texts: Iterable[str], num_characters: int) -> Iterator[list[str]]:
    """Group texts in order, each group ending with the text that brings it to so many characters."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= num_characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _joined(lines: Iterator[tuple[int, str]], *, ends_at_blank_line: bool) -> Iterator[str]:
    document: list[str] = []
    for _, line in lines:
        if line.strip() or not ends_at_blank_line:
            document.append(line)
        elif document:
            yield "\n".join(document)
            document = []
    if document:
        yield "\n".join(document)


def _read_lines(path: Path, progress: Progress) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1.  Only a line feed ends one: U+2028 and its like are text."""
    with open(path, "rb") as file:
        reported = 0
        try:
            for number, line in enumerate(gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
                if (position := file.tell()) - reported >= _REPORT_BYTES:
                    progress.advance(position - reported)
                    reported = position
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {number} is not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1};"
                " convert the file, for example with iconv"
            ) from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is no complete gzip file: {error}; copy or compress it again") from error
        progress.advance(file.tell() - reported)
