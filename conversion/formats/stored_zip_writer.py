"""A zip archive of stored entries, written in one go: byte for byte what Python's `zipfile` writes to a stream without places.

Checksums stand behind the entries.  Own code because `zipfile` takes its checksum from zlib, which is most of the cost of an archive; ISA-L's is three times as fast.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from isal.isal_zlib import crc32

from conversion.formats.stored_zip import END, END_MAGIC, FAR_END, FAR_END_MAGIC, FAR_PLACE, FAR_PLACE_MAGIC

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEADER = struct.Struct("<4s5H3L2H")  # magic, version, flags, method, time, date, checksum, both sizes, lengths of name and extra field
_LISTED = struct.Struct("<4s6H3L5H2L")  # magic, versions, the same, lengths of name, extra and comment, disk, attributes, place
_HEADER_MAGIC, _LISTED_MAGIC, _BEHIND_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08"
_PLAIN, _FAR = 20, 45  # versions of the format
_UNIX = 3 << 8
_BEHIND = 0x08  # the flag of an entry whose checksum stands behind it
_FIRST_DAY = 1 << 5 | 1  # 1 January 1980
_OWNERS = 0o600 << 16
_LIMIT = (1 << 31) - 1
_FILLED = 0xFFFFFFFF


class Stream(Protocol):
    """Where an archive is written to."""

    @property
    def size(self) -> int:
        """Bytes so far."""
        ...

    def write(self, data: Buffer) -> int:
        """Take all of the data."""
        ...


@dataclass(frozen=True)
class _Entry:
    name: bytes
    extra: bytes
    is_far: bool
    start: int
    nbytes: int
    checksum: int


@dataclass
class StoredZipWriter:
    """An archive that begins where the stream is now; `end` must be called behind the last entry.

    Attributes:
        alignment: of the content of entries within the archive; what fills up has the mark that torch gives it.
    """

    stream: Stream
    alignment: int
    _entries: list[_Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = self.stream.size

    def add(self, name: str, parts: Iterable[Buffer], nbytes: int) -> None:
        """Write an entry of `nbytes` bytes; the parts may come one after another."""
        start, is_far, encoded = self.stream.size - self._start, nbytes * 1.05 > _LIMIT, name.encode("ascii")
        far = struct.pack("<HHQQ", 1, 16, 0, 0) if is_far else b""
        padding = -(start + _HEADER.size + len(encoded) + 4 + len(far)) % self.alignment
        extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        sizes = _FILLED if is_far else 0
        version = _FAR if is_far else _PLAIN
        lengths = (len(encoded), len(extra) + len(far))
        self.stream.write(
            _HEADER.pack(_HEADER_MAGIC, version, _BEHIND, 0, 0, _FIRST_DAY, 0, sizes, sizes, *lengths) + encoded + extra + far
        )
        begin, checksum = self.stream.size, 0
        for part in parts:
            checksum = crc32(part, checksum)
            self.stream.write(part)
        assert self.stream.size - begin == nbytes, name
        self.stream.write(struct.pack("<4sLQQ" if is_far else "<4sLLL", _BEHIND_MAGIC, checksum, nbytes, nbytes))
        self._entries.append(_Entry(encoded, extra, is_far, start, nbytes, checksum))

    def end(self) -> None:
        """Write the list of all entries."""
        list_at = self.stream.size - self._start
        for entry in self._entries:
            self.stream.write(_listed(entry))
        list_end = self.stream.size - self._start
        count, list_bytes = len(self._entries), list_end - list_at
        if list_at > _LIMIT:
            self.stream.write(
                FAR_END.pack(FAR_END_MAGIC, FAR_END.size - 12, _FAR, _FAR, 0, 0, count, count, list_bytes, list_at)
                + FAR_PLACE.pack(FAR_PLACE_MAGIC, 0, list_end, 1)
            )
        self.stream.write(END.pack(END_MAGIC, 0, 0, count, count, list_bytes, min(list_at, _FILLED), 0))


def _listed(entry: _Entry) -> bytes:
    """An entry in the list; sizes and places beyond 31 bits stand in an extra field."""
    sizes, place = [entry.nbytes] * 2, entry.start
    far: list[int] = []
    if entry.nbytes > _LIMIT:
        far, sizes = sizes, [_FILLED] * 2
    if place > _LIMIT:
        far, place = [*far, place], _FILLED
    extra = (struct.pack(f"<HH{len(far)}Q", 1, 8 * len(far), *far) if far else b"") + entry.extra
    version = _FAR if far or entry.is_far else _PLAIN
    head = (_LISTED_MAGIC, version | _UNIX, version, _BEHIND, 0, 0, _FIRST_DAY, entry.checksum, *sizes)
    return _LISTED.pack(*head, len(entry.name), len(extra), 0, 0, 0, _OWNERS, place) + entry.name + extra
