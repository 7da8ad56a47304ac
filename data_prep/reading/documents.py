"""Documents: the text of plain, JSON Lines, Parquet and vertical files, one document at a time, with errors that name file and line.

A line of a `.jsonl` file (`.ndjson`, `.json` as mC4, C4 and dolma call them) is one document, under `--text-key`, and so is a row of a `.parquet` file.  So is a line of a `.txt` file, unless empty lines
in it say that documents may be longer: then `--document-separator` must tell.  A `.vert` file has a token a line, a `.prevert` file its paragraphs, see `data_prep.reading.vertical`.
All but Parquet may be compressed (`.gz`, `.xz`, `.zst`, `.bz2`).  Capitals in a name's suffix make no difference.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from common.options import add_option
from common.progress import Counter, Progress
from common.system_errors import shown_name
from data_prep.reading.compressed import COMPRESSION_NAMES, COMPRESSIONS, DamagedError, compression_of, open_compressed

_KINDS = (".txt", ".jsonl", ".json", ".ndjson", ".vert", ".prevert")
_LINES_OF_JSON = (".jsonl", ".json", ".ndjson")
SUFFIXES = (*_KINDS, ".parquet", *(kind + compression for compression in COMPRESSIONS for kind in _KINDS))
SUFFIXES_IN_WORDS = f"{', '.join(_KINDS)} (each also {', '.join(COMPRESSIONS)}), .parquet"
_TABLE = ".tsv"
SEPARATORS = ("line", "blank-line", "file")
_REPORT_BYTES = 1 << 18
_ROUNDED = 2.0**63
_LINES_BYTES = 1 << 17  # read at once


class Document(NamedTuple):
    """A document and where it came from.

    Attributes:
        line: number of its (first) line in the file, from 1.
        fields: the other keys of a JSON line; empty for plain text.
    """

    text: str
    line: int
    fields: dict[str, Any]


class BadInput(NamedTuple):
    """A part of a file that could not be read and was skipped.

    Attributes:
        line: where it is, from 1.
        reason: a few words, the same for all of its kind.
        message: the sentence that would have been the error.
    """

    path: Path
    line: int
    reason: str
    message: str


_Bad = Callable[[int, str, str], None]  # line, reason, message


class Documents:
    """The documents of some files, in order; can be read any number of times, and never holds more than one.

    Documents of nothing but white space are left out and counted.  `num_documents`, `num_empty` and `text_bytes` (of
    UTF-8) speak of the last complete reading.

    Args:
        paths: files with a suffix of `SUFFIXES`.
        text_key: the key of the text in a JSON line.
        separator: what ends a document in a `.txt` file, one of `SEPARATORS`; None for a line where no line is empty.
        max_document_bytes: as `read_documents`.

    Raises:
        ValueError: if a file is missing or of another kind; while reading, if a line is not UTF-8, no JSON or has no text
            (naming the line), and at the end if there was no document at all.
    """

    def __init__(
        self, paths: Iterable[Path | str], *, text_key: str = "text", separator: str | None = None, max_document_bytes: int | None = None
    ) -> None:
        self.paths = [Path(path) for path in paths]
        self.text_key = text_key
        self.separator = separator
        self.max_document_bytes = max_document_bytes
        self.num_documents = self.num_empty = self.text_bytes = 0
        require_text_files(self.paths, separator)

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
                documents = read_documents(
                    path, text_key=self.text_key, separator=self.separator, progress=progress, max_document_bytes=self.max_document_bytes
                )
                for document in documents:
                    text = document.text
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


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --input and the arguments of `add_format_arguments`."""
    add_option(parser, "--input FILE", f"text files or folders ({SUFFIXES_IN_WORDS})", type=Path, nargs="+", required=True)
    add_format_arguments(parser)


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --text-key and --document-separator, the same for every command that reads documents."""
    add_option(parser, "--text-key", "key of the text in a .jsonl line", "text")
    add_option(
        parser,
        "--document-separator",
        "what ends a document in a .txt file (default: a line, in a file without empty lines)",
        choices=SEPARATORS,
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


def require_text_files(paths: Iterable[Path], separator: str | None = None, *, tables: bool = False) -> None:
    """Refuse what is not a text file, before anything is read.

    Args:
        tables: also take `.tsv` files, whose cells are all texts.

    Raises:
        ValueError: naming the file or the unknown separator.
    """
    if separator is not None and separator not in SEPARATORS:
        raise ValueError(f"unknown document separator {separator!r}; the known ones are {', '.join(SEPARATORS)}")
    for path in paths:
        if not path.exists():
            raise ValueError(f"the input file {path} does not exist")
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise ValueError(f"the name of the input file {shown_name(path)} is not UTF-8, which no output could hold; rename it") from None
        if not path.is_file():
            raise ValueError(f"the input {path} is not a file; name the files in it one by one")
        if not is_text_file(path) and not (tables and kind_of(path) == _TABLE):
            raise ValueError(f"the input file {path} is of an unknown kind; expected a name ending in {SUFFIXES_IN_WORDS}")


def is_text_file(path: Path) -> bool:
    """Whether a name is one of a text file."""
    return path.name.lower().endswith(SUFFIXES)


def kind_of(path: Path) -> str:
    """What a file is, by its name: `.txt`, `.jsonl`, `.vert`, `.prevert` or `.parquet`, whatever its compression."""
    kind = (path.with_suffix("") if compression_of(path) else path).suffix.lower()
    return ".jsonl" if kind in _LINES_OF_JSON else kind


def text_key_of(path: Path, text_key: str) -> str:
    """The key of the text in a record made from a document of this file; a file without keys has `text`."""
    return text_key if kind_of(path) in (".jsonl", ".parquet") else "text"


def read_documents(
    path: Path,
    *,
    text_key: str | None = "text",
    separator: str | None = None,
    progress: Counter | None = None,
    max_document_bytes: int | None = None,
    on_bad: Callable[[BadInput], None] | None = None,
) -> Iterator[Document]:
    """Yield the documents of one file, empty ones included (but no empty line of a file of lines).

    Args:
        text_key: the key of the text in a JSON line; None takes all strings of the line as its text, one below the other.
        max_document_bytes: refuse longer lines and documents after reading no more than that; None for no limit.
        on_bad: told of each line (or rest of a compressed file) that cannot be read, which is then skipped; None makes it
            an error.

    Raises:
        ValueError: naming file and line, as `Documents` says.
    """

    def bad(line: int, reason: str, message: str) -> None:
        if on_bad is None:
            raise ValueError(message)
        on_bad(BadInput(path, line, reason, message))

    kind = kind_of(path)
    if kind == ".parquet":
        from data_prep.reading.parquet import read_rows

        yield from record_documents(path, read_rows(path, progress, bad), text_key, max_document_bytes, on_bad)
        return
    if kind == ".jsonl":
        for number, found in raw_lines(path, progress, max_document_bytes):
            if not isinstance(found, bytes):
                bad(number, *found)
            elif (document := _json_document(path, number, found, text_key, bad)) is not None:
                yield document
        return
    lines = _read_lines(path, progress, max_document_bytes, bad)
    if kind in (".vert", ".prevert"):
        from data_prep.reading.vertical import vertical_documents

        for text, number, fields in vertical_documents(path, lines, max_document_bytes, bad, has_columns=kind == ".vert"):
            yield Document(text, number, fields)
    elif kind == _TABLE:
        yield from (Document(line.replace("\t", "\n"), number, {}) for number, line in lines if line.strip())
    elif separator in ("blank-line", "file"):
        yield from _joined(path, lines, separator == "blank-line", max_document_bytes, bad)
    else:
        yield from _one_a_line(path, lines, separator)


class _BadLineError(ValueError):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _one_a_line(path: Path, lines: Iterator[tuple[int, str]], separator: str | None) -> Iterator[Document]:
    has_text, empty = False, 0
    for number, line in lines:
        if not line.strip():
            empty = number if has_text else 0
        elif empty and separator is None:
            raise ValueError(
                f"{path}, line {empty} is empty, so a document may be longer than a line; say with --document-separator"
                f" what ends one ({', '.join(SEPARATORS)})"
            )
        else:
            has_text = True
            yield Document(line, number, {})


def _json_document(path: Path, number: int, line: bytes, text_key: str | None, bad: _Bad) -> Document | None:
    """The document of a line of JSON, None for an empty line and for what `bad` was told of."""
    if text_key is not None and (document := _plain_document(number, line, text_key)) is not None:
        return document
    text = _decoded(path, number, line, bad)
    if text is None or not text.strip():
        return None
    try:
        return _parsed(path, number, text, text_key)
    except _BadLineError as error:
        bad(number, error.reason, str(error))
        return None


def _plain_document(number: int, line: bytes, text_key: str) -> Document | None:
    """The document of a line of which orjson makes what Python's `json` makes; None for any other, the empty ones and those with errors."""
    import orjson

    try:
        record = orjson.loads(line)
        text = record.pop(text_key)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Document(text, number, record) if isinstance(text, str) and not _has_large(list(record.values())) else None


def _has_large(values: list[Any]) -> bool:
    """Whether a number is one that orjson has rounded, as it does with integers beyond 64 bits."""
    for value in values:
        if isinstance(value, float):
            if abs(value) >= _ROUNDED:
                return True
        elif isinstance(value, list | dict) and _has_large(list(value.values()) if isinstance(value, dict) else value):
            return True
    return False


def _parsed(path: Path, number: int, line: str, text_key: str | None) -> Document:
    try:
        record = json.loads(line, parse_constant=_no_constant)
    except _BadLineError as error:
        raise _BadLineError(error.reason, f"{path}, line {number} {error}") from None
    except json.JSONDecodeError as error:
        raise _BadLineError(
            "no JSON", f"{path}, line {number} is not valid JSON: {error.msg} at column {error.colno}; expected one object per line"
        ) from error
    except RecursionError as error:
        raise _BadLineError(
            "no JSON", f"{path}, line {number} is JSON nested too deeply; expected one object with the text in it"
        ) from error
    except ValueError as error:
        raise _BadLineError(
            "a number too long", f"{path}, line {number} holds a number of more than 4,300 digits; write it as text or remove the line"
        ) from error
    if not isinstance(record, dict):
        raise _BadLineError("no JSON object", f"{path}, line {number} holds a JSON {type(record).__name__}; expected one object per line")
    return _record_document(path, f"line {number}", number, record, text_key)


def record_documents(
    path: Path,
    rows: Iterable[tuple[int, dict[str, Any]]],
    text_key: str | None,
    max_bytes: int | None,
    on_bad: Callable[[BadInput], None] | None = None,
) -> Iterator[Document]:
    """The documents of numbered rows; arguments and errors as `read_documents`."""
    for number, record in rows:
        try:
            document = _record_document(path, f"row {number}", number, record, text_key)
            if max_bytes is not None and len(document.text) > max_bytes:
                raise _BadLineError("too long", _too_long(path, number, "text of the row", max_bytes))
        except _BadLineError as error:
            if on_bad is None:
                raise ValueError(str(error)) from error
            on_bad(BadInput(path, number, error.reason, str(error)))
            continue
        yield document


def _record_document(path: Path, where: str, number: int, record: dict[str, Any], text_key: str | None) -> Document:
    if text_key is None:
        text = "\n".join(_strings(record))
    elif text_key not in record:
        raise _BadLineError(
            "no text",
            f"{path}, {where} has no key {text_key!r}, only {', '.join(map(repr, record)) or 'nothing'};"
            " name the key of the text with --text-key",
        )
    else:
        text = record.pop(text_key)
    if isinstance(text, bytes):
        raise _BadLineError("bytes", f"{path}, {where} holds bytes under {text_key!r} that are not UTF-8; write the column as text")
    if not isinstance(text, str):
        raise _BadLineError("no text", f"{path}, {where} holds a {type(text).__name__} under {text_key!r}; expected a string")
    try:
        text.encode()
        # What cannot be written as JSON must be said here, where file and line are known.
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair (\ud83d), which no file or tokenizer can hold
        raise _BadLineError(
            "half a surrogate pair",
            f"{path}, {where} holds half a surrogate pair, which is not valid Unicode; repair or remove the line",
        ) from error
    except ValueError as error:
        raise _BadLineError(
            "no JSON number", f"{path}, {where} holds a number that is none or too large for JSON; write null, or remove the line"
        ) from error
    except TypeError as error:
        name = next(name for name, value in record.items() if not _is_json(value))
        raise _BadLineError(
            "bytes", f"{path}, {where} holds under {name!r} what is neither text nor a number; leave that column out or write it as text"
        ) from error
    return Document(text, number, record)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _no_constant(name: str) -> float:
    raise _BadLineError("no JSON number", f"holds {name}, which is not valid JSON; write null, or remove the line")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _too_long(path: Path, number: int, what: str, limit: int) -> str:
    return f"{path}, line {number}: the {what} is longer than {limit / 2**20:g} MiB; split it, or allow more with --max-document-mib"


def _joined(path: Path, lines: Iterator[tuple[int, str]], ends_at_blank_line: bool, max_bytes: int | None, bad: _Bad) -> Iterator[Document]:
    document: list[str] = []
    first = size = 0
    for number, line in lines:
        if line.strip() or not ends_at_blank_line:
            first = first or number
            size += len(line)
            if max_bytes is None or size <= max_bytes:
                document.append(line)
            elif document:
                bad(first, "too long", _too_long(path, first, "document that begins there", max_bytes))
                document = []
        elif first:
            if document:
                yield Document("\n".join(document), first, {})
            document, first, size = [], 0, 0
    if document:
        yield Document("\n".join(document), first, {})


def _read_lines(path: Path, progress: Counter | None, max_bytes: int | None, bad: _Bad) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1."""
    for number, line in raw_lines(path, progress, max_bytes):
        if not isinstance(line, bytes):
            bad(number, *line)
        elif (text := _decoded(path, number, line, bad)) is not None:
            yield number, text


def _decoded(path: Path, number: int, line: bytes, bad: _Bad) -> str | None:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        bad(
            number,
            "no UTF-8",
            f"{path}, line {number} is not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1};"
            " convert the file, for example with iconv",
        )
        return None


def raw_lines(path: Path, progress: Counter | None, max_bytes: int | None) -> Iterator[tuple[int, bytes | tuple[str, str]]]:
    """Lines with their numbers from 1, or reason and message of what cannot be read.  Only a line feed ends one: U+2028 and its like are text."""
    for number, found in _raw_pieces(path, progress, max_bytes):
        if isinstance(found, bytes):
            yield from enumerate(found.removesuffix(b"\n").split(b"\n"), start=number)
        else:
            yield number, found


def _raw_pieces(path: Path, progress: Counter | None, max_bytes: int | None) -> Iterator[tuple[int, bytes | tuple[str, str]]]:
    """Whole lines by the piece with the number of the first, or number, reason and message of a line that cannot be read.

    Of a line that is too long no more than the limit, and a piece, is held.
    """
    import numpy as np  # takes longer than the rest of a --help

    number, begun, size, passed_over = 1, list[bytes](), 0, False  # begun: of the line of that number
    with open(path, "rb") as file:
        reported = 0
        stream = open_compressed(path, file) if compression_of(path) else file
        try:
            while data := stream.read1(_LINES_BYTES):
                if passed_over:
                    passed_over, data = b"\n" not in data, data[data.find(b"\n") + 1 :]
                    number += not passed_over
                if (end := 0 if passed_over else data.rfind(b"\n") + 1) > 0:
                    whole = b"".join((*begun, memoryview(data)[:end])) if begun or end < len(data) else data
                    yield from _within_limit(path, number, whole, max_bytes)
                    number += int(np.count_nonzero(np.frombuffer(whole, np.uint8) == ord("\n")))  # in a fourth of the time of bytes.count
                    begun, size = [], 0
                if not passed_over and end < len(data):
                    begun.append(data[end:])
                    size += len(data) - end
                    if max_bytes is not None and size > max_bytes:
                        yield number, ("too long", _too_long(path, number, "line", max_bytes))
                        begun, size, passed_over = [], 0, True
                if progress is not None and (position := file.tell()) - reported >= _REPORT_BYTES:
                    progress.advance(position - reported)
                    reported = position
            if begun:
                yield number, b"".join(begun)
        except DamagedError as error:
            after = f" after line {number - 1}" if number > 1 else ""
            what = COMPRESSION_NAMES[compression_of(path)]
            size = path.stat().st_size
            unread = f" (about {size - file.tell():,} of its {size:,} bytes were not read)" if file.tell() < size else ""
            yield number, (f"broken {what}", f"{path} is not a complete {what} file{after}: {error}{unread}; copy or compress it again")
        if progress is not None:
            progress.advance(path.stat().st_size - reported)


def _within_limit(path: Path, number: int, lines: bytes, max_bytes: int | None) -> Iterator[tuple[int, bytes | tuple[str, str]]]:
    if max_bytes is None or len(lines) <= max_bytes:
        yield number, lines
        return
    for at, line in enumerate(lines.removesuffix(b"\n").split(b"\n"), start=number):
        yield at, line + b"\n" if len(line) <= max_bytes else ("too long", _too_long(path, at, "line", max_bytes))
