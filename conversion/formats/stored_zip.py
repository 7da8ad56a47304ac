"""A zip archive as `torch.save` writes it, read so strictly that no other reader could find something else in it.

Torch reads its archives with another library than Python's, and the two take different parts of an odd file: the first or the last of
two entries of one name, an archive in front of which something stands, one behind a comment.  What is looked at here and what torch
loads must be the same bytes, so an archive with anything that torch does not write is refused.  Nothing is decompressed, since torch
compresses nothing: a small file stays small.
"""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass
from typing import IO, Any

LOCAL_HEADER = struct.Struct("<4s22xHH")  # of an entry: magic, lengths of name and extra field
END = struct.Struct("<4s4H2LH")  # magic, disks, numbers of entries, size and offset of the list, length of a comment
END_MAGIC, FAR_END_MAGIC, FAR_PLACE_MAGIC = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
FAR_END = struct.Struct("<4sQ2H2L4Q")  # the same for large archives: magic, ..., size and offset of the list
FAR_PLACE = struct.Struct("<4sLQL")  # where that stands
_PICKLE = "data.pkl"
_SCRIPTS = ("constants.pkl", "code")  # what makes torch take an archive for a program


@dataclass(frozen=True)
class StoredZip:
    """An archive.

    Attributes:
        entries: by the part of their name behind the archive's own, for example `data.pkl` and `data/0`.
        stream: of the archive alone.
    """

    entries: dict[str, zipfile.ZipInfo]
    stream: IO[bytes]

    def pickle(self) -> bytes:
        """The content of `data.pkl`.

        Raises:
            ValueError: if there is none, or it is not where the list of entries says.
        """
        if _PICKLE not in self.entries:
            raise ValueError(f"it holds no {_PICKLE}")
        begin = self.begin(self.entries[_PICKLE])
        self.stream.seek(begin)
        return self.stream.read(self.entries[_PICKLE].file_size)

    def begin(self, entry: zipfile.ZipInfo) -> int:
        """Where the content of an entry begins.

        Raises:
            ValueError: if it is not where the list of entries says.
        """
        self.stream.seek(entry.header_offset)
        header = self.stream.read(LOCAL_HEADER.size)
        if len(header) < LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
            raise ValueError(f"its entry {entry.filename} is not where its list says")
        _, name_bytes, extra_bytes = LOCAL_HEADER.unpack(header)
        begin: int = entry.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
        if begin + entry.file_size > self.stream.seek(0, io.SEEK_END):
            raise ValueError(f"its entry {entry.filename} is not where its list says")
        return begin


def read_archive(stream: IO[bytes], size: int) -> StoredZip:
    """The list of an archive that fills a stream of `size` bytes.

    Raises:
        ValueError: if it is not as torch writes it.
        zipfile.BadZipFile: if it is corrupt.
    """
    _require_plain(stream, size)
    with zipfile.ZipFile(stream) as archive:
        infos = archive.infolist()
    root = infos[0].orig_filename.partition("/")[0] + "/" if infos else ""
    entries: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.orig_filename
        if not name.isascii() or not name.isprintable() or info.filename != name or not name.startswith(root) or len(root) < 2:
            raise ValueError(f"it has an entry of the name {name!r}, which torch does not give")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
            raise ValueError(f"its entry {name} is compressed or encrypted, which torch does not do")
        entries[name.removeprefix(root)] = info
    if len({name.lower() for name in entries}) != len(infos):  # torch does not tell upper from lower case
        raise ValueError("two of its entries have one name")
    if programs := [name for name in entries if name.partition("/")[0].lower() in _SCRIPTS]:
        raise ValueError(f"it is a program, not data: it has {programs[0]}")
    if not infos or min(info.header_offset for info in infos):
        raise ValueError("something stands before its first entry")
    return StoredZip(entries, stream)


def _require_plain(stream: IO[bytes], size: int) -> None:
    """Hold what stands behind the entries to its one form: the list, the end of large archives, the end."""
    stream.seek(0)
    if stream.read(4) != b"PK\x03\x04":
        raise ValueError("it does not begin as an archive")
    end_at = size - END.size
    end = _read(stream, end_at, END)
    if end[0] != END_MAGIC or end[-1]:
        raise ValueError("it does not end as an archive")
    far_place = _read(stream, end_at - FAR_PLACE.size, FAR_PLACE)
    list_bytes, list_at, list_end = end[5], end[6], end_at
    if far_place[0] == FAR_PLACE_MAGIC:
        list_end = end_at - FAR_PLACE.size - FAR_END.size
        far_end = _read(stream, list_end, FAR_END)
        if far_end[0] != FAR_END_MAGIC or far_place[2] != list_end:
            raise ValueError("it has two ends")
        list_bytes, list_at = far_end[8], far_end[9]
    if list_at + list_bytes != list_end:
        raise ValueError("something stands between its list and its end")


def _read(stream: IO[bytes], at: int, form: struct.Struct) -> tuple[Any, ...]:
    if at < 0:
        raise ValueError("it is too short for an archive")
    stream.seek(at)
    return form.unpack(stream.read(form.size))
