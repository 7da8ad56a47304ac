"""Compressed files as streams that give all that comes before a damage: a cut or broken file loses what is broken, and no line before it.

Decompressors work in blocks, and an error takes with it what they had already made of the block.  Where one comes up the file is therefore
read once more, byte by byte near the damage.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

COMPRESSIONS = (".gz", ".xz", ".zst")
COMPRESSION_NAMES = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}
_BUFFER_BYTES = 1 << 18
# Compressed bytes before the place where an error came up that are read one by one: the libraries read half of that ahead,
# gzip as much from Python 3.12 on.
_NEAR_BYTES = {".gz": 1 << 18, ".xz": 1 << 14, ".zst": 1 << 17}
_PIECE_BYTES = 1 << 16
_SAMPLE_BYTES = 1 << 20


class DamagedError(Exception):
    """A compressed file that is broken or ends too early."""


def open_compressed(path: Path, file: BinaryIO) -> io.BufferedReader:
    """What a file of one of `COMPRESSIONS` holds; reading raises `DamagedError` behind the last byte that can be had.

    Args:
        file: the same, open; its position tells how far reading has come.
    """
    return io.BufferedReader(_Careful(path, file), _BUFFER_BYTES)


def density(path: Path) -> float:
    """Bytes of text for each byte of a compressed file, by its first megabyte; 1 where that cannot be read."""
    with open(path, "rb") as file:
        stream = open_compressed(path, file)
        try:
            text = len(stream.read(_SAMPLE_BYTES))
        except DamagedError:
            return 1
        return text / max(1, file.tell() if text == _SAMPLE_BYTES else path.stat().st_size)


class _Careful(io.RawIOBase):
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._stream = _stream(path.suffix, file)
        self._given = 0  # bytes
        self._rest: bytes | None = None  # before the damage, once that is found
        self._damage: DamagedError | None = None

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; see `io.RawIOBase`."""
        if self._rest is None:
            try:
                data = self._stream.read(len(buffer))
                self._given += len(data)
            except Exception as error:
                self._damage = _damage(error)
                self._rest = _before_the_damage(self._path, self._file.tell(), self._given)
        if self._rest is not None:
            if not self._rest:
                assert self._damage is not None
                raise self._damage
            data, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def _stream(suffix: str, file: BinaryIO) -> Any:
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=file)
    if suffix == ".xz":
        return lzma.LZMAFile(file)
    import pyarrow  # which `datasets` needs anyway

    return pyarrow.CompressedInputStream(file, "zstd")


def _damage(error: Exception) -> DamagedError:
    """What a library's error says of the file; an error of the disk goes through."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    if not isinstance(error, OSError | EOFError | zlib.error | lzma.LZMAError):
        raise error
    return DamagedError(str(error))


def _before_the_damage(path: Path, position: int, given: int) -> bytes:
    """What can be had behind the bytes that were given already.

    Args:
        position: in the compressed file, to which the library had read.
    """
    found = bytearray()
    try:
        with open(path, "rb") as file:
            slowly = _Slowly(file, position - _NEAR_BYTES[path.suffix])
            for data in _from_zstd(slowly, given) if path.suffix == ".zst" else _from_members(slowly, path.suffix):
                skipped = min(given, len(data))
                given -= skipped
                found += data[skipped:]
    except Exception as error:
        _damage(error)
    return bytes(found)


class _Slowly:
    """A compressed file that is read in pieces, and byte by byte from some place on."""

    def __init__(self, file: BinaryIO, near: int) -> None:
        self._file, self._near = file, near
        self.closed = False

    def close(self) -> None:
        """For pyarrow, which closes what it reads; the file is whose who opened it."""
        self.closed = True

    def read(self, size: int = -1) -> bytes:
        """The next piece, no more than `size` bytes; nothing at the end."""
        piece = min(_PIECE_BYTES, self._near - self._file.tell())
        return self._file.read(max(1, piece if size < 0 else min(piece, size)))


def _from_members(file: _Slowly, suffix: str) -> Iterator[bytes]:
    """Of gzip and xz, of which one file may hold several."""

    def fresh() -> Any:
        return zlib.decompressobj(wbits=31) if suffix == ".gz" else lzma.LZMADecompressor()

    member = fresh()
    while piece := file.read():
        yield member.decompress(piece)
        while member.eof and (piece := member.unused_data.lstrip(b"\0")):
            member = fresh()
            yield member.decompress(piece)
        if member.eof:
            member = fresh()


def _from_zstd(file: _Slowly, given: int) -> Iterator[bytes]:
    import pyarrow

    stream = pyarrow.CompressedInputStream(file, "zstd")
    while given and (data := stream.read(min(given, _BUFFER_BYTES))):  # known to be whole
        given -= len(data)
        yield data
    while data := stream.read(1):  # of a longer piece an error would take all
        yield data
