"""Documents in blocks of a megabyte: their texts as bytes, end to end, and their other fields as JSON ready to write.

What is written is what `json.dumps` would write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from data_prep.reading.documents import Document, read_documents, text_key_of

_BLOCK_BYTES = 1 << 20


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

    def json_lines(self, documents: NDArray[np.int64], file_name: str) -> bytes:
        """Some documents by their numbers (num_documents,) as lines of JSON: the id (FILE:LINE where there is none), the other members, the text."""
        return b"".join(self.json_line(document, None, file_name) for document in documents.tolist())

    def json_line(self, document: int, text: bytes | None, file_name: str, more: Mapping[str, Any] | None = None) -> bytes:
        """One document with another text (None for its own), and with more members or others in the place of its own, as a line of JSON.

        Members that have a value for each line of the document (HPLT's `langs`, MaCoCu's `scores`) are left out where the text has lost lines.
        """
        fields = None
        rest = self.rest[self.rest_offsets[document] : self.rest_offsets[document + 1]]
        if text is None:
            text = self.data(document)
        elif b"[" in rest and (lines := (was := self.data(document)).count(b"\n") + 1) > 1 and text.count(b"\n") != was.count(b"\n"):
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


def read_blocks(path: Path, *, text_key: str | None = "text", **options: Any) -> Iterator[Block]:
    """Yield the documents of a file in blocks of about a megabyte; options and errors as `read_documents`."""
    for group in _grouped(read_documents(path, text_key=text_key, **options)):
        yield Block.of(group, text_key_of(path, text_key or "text"))


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
    return orjson.dumps(text)
