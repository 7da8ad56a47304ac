"""A zip archive of stored entries as `torch.save` writes it: read so strictly that no other reader could find something else, written in one go.

Torch reads its archives with another library than Python's, and the two take different parts of an odd file: the first or the last of
two entries of one name, an archive in front of which something stands, one behind a comment.  What is looked at here and what torch
loads must be the same bytes, so an archive with anything that torch does not write is refused.  Nothing is decompressed, since torch
compresses nothing: a small file stays small.

What is written is byte for byte what Python's `zipfile` writes to a stream without places: checksums stand behind the entries.  Own code
because `zipfile` takes its checksum from zlib, which is most of the cost of an archive; ISA-L's is three times as fast.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from isal.isal_zlib import crc32

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEADER = struct.Struct("<4s5H3L2H")  # magic, version, flags, method, time, date, checksum, both sizes, lengths of name and extra field
_LISTED = struct.Struct("<4s6H3L5H2L")  # magic, versions, the same, lengths of name, extra and comment, disk, attributes, place
_END = struct.Struct("<4s4H2LH")  # magic, disks, numbers of entries, size and offset of the list, length of a comment
_FAR_END = struct.Struct("<4sQ2H2L4Q")  # the same for large archives: magic, ..., size and offset of the list
_FAR_PLACE = struct.Struct("<4sLQL")  # where that stands
_HEADER_MAGIC, _LISTED_MAGIC, _BEHIND_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08"
_END_MAGIC, _FAR_END_MAGIC, _FAR_PLACE_MAGIC = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_PLAIN, _FAR = 20, 45  # versions of the format
_UNIX = 3 << 8
_BEHIND = 0x08  # the flag of an entry whose checksum stands behind it
_ENCRYPTED = 0x01
_FIRST_DAY = 1 << 5 | 1  # 1 January 1980
_OWNERS = 0o600 << 16
_LIMIT = (1 << 31) - 1
_FILLED = 0xFFFFFFFF
_FAR_FIELD = 1  # of sizes and places that do not fit into 32 bits
_PICKLE = "data.pkl"
_SCRIPTS = ("constants.pkl", "code")  # what makes torch take an archive for a program

Entries = dict[str, tuple[int, int]]
"""The part of a name behind the archive's own, for example `data.pkl` and `data/0` -> where its content begins, and its bytes."""


# -- reading --------------------------------------------------------------------------------------------------------------


def read_entries(data: memoryview) -> Entries:
    """The entries of an archive that is all of some bytes.

    Raises:
        ValueError: if it is not as torch writes it.
    """
    if data[:4] != _HEADER_MAGIC:
        raise ValueError("it does not begin as an archive")
    at, end = _place_of_list(data)
    entries: Entries = {}
    names: list[str] = []
    places: list[int] = []
    root = ""
    while at < end:
        magic, _, _, flags, method, _, _, _, stored, nbytes, name_bytes, extra_bytes, comment_bytes, _, _, _, place = _unpack(
            _LISTED, data, at
        )
        at += _LISTED.size + name_bytes + extra_bytes + comment_bytes
        if magic != _LISTED_MAGIC or at > end:
            raise ValueError("its list of entries is corrupt")
        behind = data[at - comment_bytes - extra_bytes - name_bytes : at - comment_bytes]
        name = bytes(behind[:name_bytes]).decode("latin-1")
        root = root or name.partition("/")[0] + "/"
        if not name.isascii() or not name.isprintable() or not name.startswith(root) or len(root) < 2:
            raise ValueError(f"it has an entry of the name {name!r}, which torch does not give")
        stored, nbytes, place = _wide(behind[name_bytes:], stored, nbytes, place)
        if method or stored != nbytes or flags & _ENCRYPTED:
            raise ValueError(f"its entry {name} is compressed or encrypted, which torch does not do")
        names.append(name.removeprefix(root))
        places.append(place)
        entries[names[-1]] = _begin(data, name, place, nbytes), nbytes
    if len({name.lower() for name in names}) != len(names):  # torch does not tell upper from lower case
        raise ValueError("two of its entries have one name")
    if programs := [name for name in names if name.partition("/")[0].lower() in _SCRIPTS]:
        raise ValueError(f"it is a program, not data: it has {programs[0]}")
    if min(places, default=1):
        raise ValueError("something stands before its first entry")
    return entries


def pickle_in(data: memoryview, entries: Entries) -> bytes:
    """The content of `data.pkl`.

    Raises:
        ValueError: if there is none.
    """
    if _PICKLE not in entries:
        raise ValueError(f"it holds no {_PICKLE}")
    begin, nbytes = entries[_PICKLE]
    return bytes(data[begin : begin + nbytes])


def _place_of_list(data: memoryview) -> tuple[int, int]:
    """Where the list of entries begins and ends; what stands behind it has one form: the end of large archives, the end."""
    end_at = len(data) - _END.size
    end = _unpack(_END, data, end_at)
    if end[0] != _END_MAGIC or end[-1]:
        raise ValueError("it does not end as an archive")
    far_place = _unpack(_FAR_PLACE, data, end_at - _FAR_PLACE.size)
    list_bytes, list_at, list_end = end[5], end[6], end_at
    if far_place[0] == _FAR_PLACE_MAGIC:
        list_end = end_at - _FAR_PLACE.size - _FAR_END.size
        far_end = _unpack(_FAR_END, data, list_end)
        if far_end[0] != _FAR_END_MAGIC or far_place[2] != list_end:
            raise ValueError("it has two ends")
        list_bytes, list_at = far_end[8], far_end[9]
    if list_at + list_bytes != list_end:
        raise ValueError("something stands between its list and its end")
    return list_at, list_end


def _wide(extra: memoryview, stored: int, nbytes: int, place: int) -> tuple[int, int, int]:
    """Both sizes and the place of an entry, of which those that do not fit stand in an extra field, the size of the content first."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == _FAR_FIELD:
            far = [*struct.unpack_from(f"<{length // 8}Q", extra, 4), *[_FILLED] * 3]
            nbytes, stored, place = (far.pop(0) if value == _FILLED else value for value in (nbytes, stored, place))
            break
        extra = extra[4 + length :]
    return stored, nbytes, place


def _begin(data: memoryview, name: str, place: int, nbytes: int) -> int:
    """Where the content of an entry begins."""
    header = _unpack(_HEADER, data, place) if place + _HEADER.size <= len(data) else [b""]
    begin: int = place + _HEADER.size + sum(header[-2:]) if header[0] == _HEADER_MAGIC else len(data) + 1
    if begin + nbytes > len(data):
        raise ValueError(f"its entry {name} is not where its list says")
    return begin


def _unpack(form: struct.Struct, data: memoryview, at: int) -> tuple[Any, ...]:
    if at < 0 or at + form.size > len(data):
        raise ValueError("it is too short for an archive")
    return form.unpack_from(data, at)


# -- writing --------------------------------------------------------------------------------------------------------------


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
                _FAR_END.pack(_FAR_END_MAGIC, _FAR_END.size - 12, _FAR, _FAR, 0, 0, count, count, list_bytes, list_at)
                + _FAR_PLACE.pack(_FAR_PLACE_MAGIC, 0, list_end, 1)
            )
        self.stream.write(_END.pack(_END_MAGIC, 0, 0, count, count, list_bytes, min(list_at, _FILLED), 0))


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
