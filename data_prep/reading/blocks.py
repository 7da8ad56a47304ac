"""Documents by the megabyte: their texts as bytes one behind the other, their other members as JSON that is ready to be written.

Lines of JSON are read and written by compiled loops, without an object for each document; any other file, and any line that is out of the ordinary,
goes through `data_prep.reading.documents`, which knows the errors.  What is written is what `json.dumps` would write.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import native
from common.native import address
from common.progress import Counter
from data_prep.reading.documents import BadInput, Document, json_document, kind_of, raw_pieces, read_documents, text_key_of

SOURCE = Path(__file__).with_name("json_lines.c")
_BLOCK_BYTES = 1 << 20
_PLAIN, _EMPTY = 0, 1
_KEPT_ROOM_BYTES = 16 << 20


@dataclass(frozen=True)
class Block:
    """Some documents of a file.

    Attributes:
        key: under which their text is written.
        text, offsets: UTF-8 of document d is text[offsets[d]:offsets[d + 1]].
        rest, rest_offsets: its other members as JSON (`"id": 7, "url": "..."`), the id before the others.
        id_sizes: how many bytes of these are the id; 0 where there is none.
        lines: of each in the file.
        characters: of each text.
    """

    key: str
    text: bytes
    offsets: NDArray[np.int64]
    rest: bytes
    rest_offsets: NDArray[np.int64]
    id_sizes: NDArray[np.int64]
    lines: NDArray[np.int64]
    characters: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lines)

    @classmethod
    def of(cls, documents: Sequence[Document], key: str) -> Block:
        """The same documents in bytes."""
        rests, id_sizes = [], []
        for document in documents:
            fields = document.fields
            if "id" in fields:
                fields = {"id": fields["id"], **fields}
                id_sizes.append(len(json.dumps({"id": fields["id"]}, ensure_ascii=False).encode()) - 2)
            else:
                id_sizes.append(0)
            rests.append(json.dumps(fields, ensure_ascii=False).encode()[1:-1])
        return cls(
            key,
            *_joined([document.text.encode() for document in documents]),
            *_joined(rests),
            np.array(id_sizes, np.int64),
            np.array([document.line for document in documents], np.int64),
            np.array([len(document.text) for document in documents], np.int64),
        )

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes."""
        return len(self.text) + len(self.rest) + 5 * 8 * len(self.lines)

    def data(self, document: int) -> bytes:
        """The text of a document in UTF-8."""
        return self.text[self.offsets[document] : self.offsets[document + 1]]

    def texts(self) -> list[bytes]:
        """All texts in UTF-8."""
        return [self.text[start:end] for start, end in pairwise(self.offsets.tolist())]

    def fields(self, document: int) -> dict[str, Any]:
        """The other members of a document."""
        fields: dict[str, Any] = json.loads(b"{" + self.rest[self.rest_offsets[document] : self.rest_offsets[document + 1]] + b"}")
        return fields

    def id_json(self, document: int) -> bytes | None:
        """The id of a document as JSON, None where it has none."""
        size = int(self.id_sizes[document])
        start = int(self.rest_offsets[document])
        return self.rest[start + len('"id": ') : start + size] if size else None

    def ids_json(self) -> list[bytes]:
        """The ids of all documents as JSON, empty where there is none."""
        starts = self.rest_offsets[:-1] + len('"id": ')
        return [self.rest[start:end] for start, end in zip(starts.tolist(), (self.rest_offsets[:-1] + self.id_sizes).tolist())]

    def identity(self, document: int, file_name: str) -> Any:
        """The id of a document, or FILE:LINE."""
        found = self.id_json(document)
        return json.loads(found) if found is not None else f"{file_name}:{self.lines[document]}"

    def document(self, document: int) -> Document:
        """A document as other readers know it."""
        return Document(self.data(document).decode(), int(self.lines[document]), self.fields(document))

    def json_lines(self, documents: NDArray[np.int64], file_name: str) -> bytes | memoryview:
        """Some documents, by their rising numbers (num_documents,), as lines of JSON: the id (FILE:LINE where there is none), the other members, the text.

        What comes back may lie in memory that the next call writes to.
        """
        library = native.load(SOURCE)
        if library is None or self.key == "id":
            return b"".join(self.json_line(document, self.data(document), file_name) for document in documents.tolist())
        if not len(documents):
            return b""
        first, last = int(documents[0]), int(documents[-1]) + 1
        name = _string(file_name)[:-1]
        key = f', {json.dumps(self.key, ensure_ascii=False)}: "'.encode()
        room = 6 * int(self.offsets[last] - self.offsets[first]) + int(self.rest_offsets[last] - self.rest_offsets[first])
        out = _room("lines", room + (last - first) * (len(name) + len(key) + 64))
        library.json_lines_write.restype = ctypes.c_int64
        size = library.json_lines_write(
            self.text, address(self.offsets), self.rest, address(self.rest_offsets), address(self.id_sizes), address(self.lines),
            address(documents), _int64(len(documents)),
            name, _int64(len(name)), key, _int64(len(key)), address(out),
        )  # fmt: skip
        return out[:size].data

    def json_line(self, document: int, text: bytes, file_name: str, more: Mapping[str, Any] | None = None) -> bytes:
        """One document with another text, and with more members or others in the place of its own, as a line of JSON.

        Members that have a value for each line of the document (HPLT's `langs`, MaCoCu's `scores`) are left out where the text has lost lines.
        """
        fields = None
        rest = self.rest[self.rest_offsets[document] : self.rest_offsets[document + 1]]
        if b"[" in rest and (lines := (was := self.data(document)).count(b"\n") + 1) > 1 and text.count(b"\n") != was.count(b"\n"):
            fields = {name: value for name, value in self.fields(document).items() if not (isinstance(value, list) and len(value) == lines)}
        if self.key == "id":
            record = {"id": "", **(self.fields(document) if fields is None else fields)} | {"id": text.decode()}
            return json.dumps(record, ensure_ascii=False).encode() + b"\n"
        if more or fields is not None:
            fields = self.fields(document) if fields is None else fields
            record = {"id": self.identity(document, file_name), **fields, **(more or {}), self.key: text.decode()}
            return json.dumps(record, ensure_ascii=False).encode() + b"\n"
        if not self.id_sizes[document]:
            rest = b'"id": ' + _string(f"{file_name}:{self.lines[document]}") + (b", " if rest else b"") + rest
        return b"{" + rest + b", " + _string(self.key) + b": " + _string(text.decode()) + b"}\n"


def read_blocks(
    path: Path,
    *,
    text_key: str | None = "text",
    separator: str | None = None,
    progress: Counter | None = None,
    max_document_bytes: int | None = None,
    on_bad: Callable[[BadInput], None] | None = None,
) -> Iterator[Block]:
    """Yield the documents of a file in blocks of about a megabyte; arguments and errors as `read_documents`."""
    library = native.load(SOURCE)
    if kind_of(path) != ".jsonl" or library is None or text_key is None or text_key == "id" or _string(text_key)[1:-1] != text_key.encode():
        documents = read_documents(
            path, text_key=text_key, separator=separator, progress=progress, max_document_bytes=max_document_bytes, on_bad=on_bad
        )
        for group in _grouped(documents):
            yield Block.of(group, text_key_of(path, text_key or "text"))
        return

    def bad(line: int, reason: str, message: str) -> None:
        if on_bad is None:
            raise ValueError(message)
        on_bad(BadInput(path, line, reason, message))

    waiting: list[Block] = []  # until what follows is known to be no bad line, which ends a run before it has decided anything of these
    for number, found in raw_pieces(path, progress, max_document_bytes):
        if not isinstance(found, bytes):
            bad(number, *found)
        yield from waiting
        waiting = _read(library, path, found, number, text_key, bad) if isinstance(found, bytes) else []
    yield from waiting


def _read(
    library: ctypes.CDLL, path: Path, data: bytes, first_line: int, text_key: str, bad: Callable[[int, str, str], None]
) -> list[Block]:
    """Blocks of lines that follow each other; the odd ones among them by Python."""
    line_feeds = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    num_lines = len(line_feeds) + (not data.endswith(b"\n"))
    starts = np.zeros(num_lines + 1, np.int64)
    starts[-1] = len(data)
    starts[1 : len(line_feeds) + 1] = line_feeds + 1
    key = text_key.encode()
    kinds = np.empty(num_lines, np.uint8)
    text, rest = _room("text", len(data) + 1), _room("rest", 2 * len(data) + 16)
    offsets, rest_offsets = np.zeros(num_lines + 1, np.int64), np.zeros(num_lines + 1, np.int64)
    characters, id_sizes = np.empty(num_lines, np.int64), np.empty(num_lines, np.int64)
    library.json_lines_read(
        data, address(starts), _int64(num_lines), key, _int64(len(key)), address(kinds), address(text),
        address(offsets[1:]), address(characters),
        address(rest), address(rest_offsets[1:]), address(id_sizes),
    )  # fmt: skip
    blocks, place = [], 0
    odd = np.flatnonzero(kinds > _EMPTY).tolist()
    for end in (*odd, num_lines):
        plain = place + np.flatnonzero(kinds[place:end] == _PLAIN)
        if len(plain):
            # Empty lines have no bytes, so the ends of the others are where the next begin.
            at, rest_at = offsets[[plain[0], *(plain + 1)]], rest_offsets[[plain[0], *(plain + 1)]]
            found = Block(
                text_key,
                text[at[0] : at[-1]].tobytes(),
                at - at[0],
                rest[rest_at[0] : rest_at[-1]].tobytes(),
                rest_at - rest_at[0],
                id_sizes[plain],
                first_line + plain,
                characters[plain],
            )
            blocks.append(found)
        if (
            end < num_lines
            and (document := json_document(path, first_line + end, data[starts[end] : starts[end + 1]], text_key, bad)) is not None
        ):
            blocks.append(Block.of([document], text_key))
        place = end + 1
    return blocks


_kept = threading.local()


def _room(name: str, size: int) -> NDArray[np.uint8]:
    """So many bytes for what is soon copied or written, the same again and again: new pages from the kernel cost as much as what is done in them."""
    if size > _KEPT_ROOM_BYTES:
        return np.empty(size, np.uint8)
    if len(found := getattr(_kept, name, _NO_ROOM)) < size:
        found = np.empty(size + size // 4, np.uint8)
        setattr(_kept, name, found)
    return found


_NO_ROOM = np.empty(0, np.uint8)


def _grouped(documents: Iterator[Document]) -> Iterator[list[Document]]:
    group: list[Document] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document.text)
        if size >= _BLOCK_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _joined(parts: Sequence[bytes]) -> tuple[bytes, NDArray[np.int64]]:
    return b"".join(parts), _ends([len(part) for part in parts])


def _ends(sizes: Sequence[int]) -> NDArray[np.int64]:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _string(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


_int64 = ctypes.c_int64
