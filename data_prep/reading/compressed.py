"""Compressed files as streams that return everything before a damaged part.

Decompressors work in blocks, and an error takes with it what they had already made of the block.  Where one comes up the file is therefore
read once more, byte by byte near the damage.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

COMPRESSION_NAMES = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".bz2": "bzip2"}
COMPRESSIONS = tuple(COMPRESSION_NAMES)
_BUFFER_BYTES = 1 << 18
# Compressed bytes before the place where an error came up that are read one by one: the libraries read half of that ahead,
# gzip as much from Python 3.12 on.
_NEAR_BYTES = {".gz": 1 << 18, ".xz": 1 << 14, ".zst": 1 << 17, ".bz2": 1 << 14}
_MAX_WINDOW_LOG = 31  # zstd --ultra --long=31, as Pushshift and The Pile are packed; the library refuses windows above 2^27 unasked
_PIECE_BYTES = 1 << 16
_SAMPLE_BYTES = 1 << 20


class DamagedError(Exception):
    """A compressed file that is broken or ends too early."""


def compression_of(path: Path) -> str:
    """Which of `COMPRESSIONS` a file has by its name, in capitals too; empty where it has none."""
    return suffix if (suffix := path.suffix.lower()) in COMPRESSIONS else ""


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
        self._stream = _stream(compression_of(path), file)
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
    if suffix == ".bz2":
        return bz2.BZ2File(file)
    from backports import zstd

    return zstd.ZstdFile(file, options=_zstd_options())


def _zstd_options() -> Any:
    from backports import zstd

    return {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}


def _damage(error: Exception) -> DamagedError:
    """What a library's error says of the file; an error of the disk goes through."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    if not isinstance(error, OSError | EOFError | zlib.error | lzma.LZMAError) and type(error).__name__ != "ZstdError":
        raise error
    return DamagedError(str(error))


def _before_the_damage(path: Path, position: int, given: int) -> bytes:
    """What can be had behind the bytes that were given already.

    Args:
        position: in the compressed file, to which the library had read.
    """
    found = bytearray()
    suffix = compression_of(path)
    try:
        with open(path, "rb") as file:
            slowly = _Slowly(file, position - _NEAR_BYTES[suffix])
            for data in _from_members(slowly, suffix):
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

    def read(self, size: int = -1) -> bytes:
        """The next piece, no more than `size` bytes; nothing at the end."""
        piece = min(_PIECE_BYTES, self._near - self._file.tell())
        return self._file.read(max(1, piece if size < 0 else min(piece, size)))


def _from_members(file: _Slowly, suffix: str) -> Iterator[bytes]:
    """What the members (gzip, xz, bzip2) or frames (zstd) of a file hold, of which it may have several."""

    def fresh() -> Any:
        if suffix == ".gz":
            return zlib.decompressobj(wbits=31)
        if suffix == ".zst":
            from backports import zstd

            return zstd.ZstdDecompressor(options=_zstd_options())
        return bz2.BZ2Decompressor() if suffix == ".bz2" else lzma.LZMADecompressor()

    member = fresh()
    while piece := file.read():
        yield member.decompress(piece)
        while member.eof and (piece := member.unused_data.lstrip(b"\0")):
            member = fresh()
            yield member.decompress(piece)
        if member.eof:
            member = fresh()
