"""The files of a published set: loose, or in zip and tar archives, of which nothing is unpacked and nothing is believed."""

from __future__ import annotations

import bz2
import fnmatch
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from common.own_files import require_own

# Text is packed to about a tenth; what grows more than this was made to.
_MAX_GROWTH, _MAX_GROWTH_START = 100, 64 << 20
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile)


@dataclass(frozen=True)
class PublishedFile:
    """One file of a set.

    Attributes:
        name: below the source folder, with the archive that holds it as a folder.
        path: of the file, or of its archive.
        content: what an archive holds of it; None for a loose file.
    """

    name: str
    path: Path
    content: bytes | None = None

    def open(self) -> BinaryIO:
        """The bytes, unpacked where the file itself is compressed (`.gz`).

        Raises:
            ValueError: while reading, if it becomes far larger than text does.
        """
        raw: BinaryIO = self.path.open("rb") if self.content is None else io.BytesIO(self.content)
        if not self.name.endswith(".gz"):
            return raw
        packed = self.path.stat().st_size if self.content is None else len(self.content)
        return io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=raw), packed, self.name))


def find_files(folder: Path, patterns: Sequence[str], *, archives: Sequence[str] = ()) -> list[PublishedFile]:
    """Files below a folder that match the first pattern that any matches, by name; `*` also stands for folders.

    Archives are opened only where no loose file matches.

    Args:
        archives: names of the archives that may hold them.

    Raises:
        ValueError: if an archive is damaged, or made to fill memory or to write elsewhere; if a link leads out of the folder.
    """
    loose = [PublishedFile(path.relative_to(folder).as_posix(), path) for path in _walk(folder)]
    if found := _first_match(loose, patterns):
        for file in found:
            require_own(file.path)
        return found
    packed: list[PublishedFile] = []
    for archive in loose:
        if any(fnmatch.fnmatchcase(archive.path.name, pattern) for pattern in archives):
            require_own(archive.path)
            packed += _members(archive, patterns)
    return _first_match(packed, patterns)


def _walk(folder: Path) -> list[Path]:
    return sorted(Path(root) / name for root, _, names in os.walk(folder) for name in names if (Path(root) / name).is_file())


def _first_match(files: Sequence[PublishedFile], patterns: Sequence[str]) -> list[PublishedFile]:
    for pattern in patterns:
        if found := [file for file in files if _matches(file.name, pattern)]:
            return found
    return []


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(f"/{name}", pattern) and "__MACOSX/" not in name


def _members(archive: PublishedFile, patterns: Sequence[str]) -> Iterator[PublishedFile]:
    """Members of an archive that match one of the patterns."""
    try:
        with open(archive.path, "rb") as stream:
            for name, content in _zip(archive, stream, patterns) if zipfile.is_zipfile(stream) else _tar(archive, stream, patterns):
                yield PublishedFile(f"{archive.name}/{name}", archive.path, content)
    except _DAMAGE as error:
        raise ValueError(f"{archive.path} is not a whole archive: {error}; fetch it again") from error


def _is_selected(archive: PublishedFile, name: str, patterns: Sequence[str]) -> bool:
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(
            f"{archive.path} holds {name!r}, which lies outside it: it was made to write elsewhere; fetch it from its publisher"
        )
    return any(_matches(f"{archive.name}/{name}", pattern) for pattern in patterns)


def _zip(archive: PublishedFile, stream: IO[bytes], patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    limit = _limit(archive.path.stat().st_size)
    with zipfile.ZipFile(stream) as packed:
        for info in packed.infolist():
            if info.is_dir() or not _is_selected(archive, info.filename, patterns):
                continue
            if info.flag_bits & 1:
                raise ValueError(f"{info.filename} in {archive.path} needs a password; unpack it into the source folder")
            limit -= info.file_size
            if limit < 0 or info.file_size > _limit(info.compress_size):
                raise _TooLargeError(f"{info.filename} in {archive.path}")
            yield info.filename, packed.read(info)  # no more than its entry says, and with its checksum


def _tar(archive: PublishedFile, stream: IO[bytes], patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    size = archive.path.stat().st_size
    stream.seek(0)
    start = stream.read(6)
    stream.seek(0)
    opener = next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)
    plain = stream if opener is None else io.BufferedReader(_Bounded(opener(stream), size, str(archive.path)))
    with tarfile.open(fileobj=plain, mode="r|") as packed:
        for info in packed:
            name = info.name.removeprefix("./")
            if info.isfile() and _is_selected(archive, name, patterns):
                member = packed.extractfile(info)
                assert member is not None, "a regular file has content"
                yield name, member.read()


def _limit(packed_bytes: int) -> int:
    return _MAX_GROWTH * packed_bytes + _MAX_GROWTH_START


class _TooLargeError(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} unpacks to more than {_MAX_GROWTH} times its size, which no text does; fetch it from its publisher")


class _Bounded(io.RawIOBase):
    """An unpacked stream that refuses to become far larger than text does."""

    def __init__(self, stream: Any, packed_bytes: int, name: str) -> None:
        self._stream, self._left, self._name = stream, _limit(packed_bytes), name

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; see `io.RawIOBase`."""
        data = self._stream.read(min(len(buffer), 1 << 20))
        self._left -= len(data)
        if self._left < 0:
            raise _TooLargeError(self._name)
        buffer[: len(data)] = data
        return len(data)
