"""Archives and their checksums are those of Python's own modules, byte for byte."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable

import pytest
from isal import isal_zlib

from conversion.formats.stored_zip import StoredZipWriter, read_entries

ALIGNMENT = 64
ENTRIES = {"archive/data.pkl": b"x" * 77, "archive/data/0": bytes(range(256)) * 300, "archive/nothing": b"", "archive/version": b"3\n"}


class _Forward:
    """A stream that cannot go back; `kept` are its parts but those that are as long as `left_out`."""

    def __init__(self, left_out: int = -1) -> None:
        self.size, self.kept, self._left_out = 0, b"", left_out

    def write(self, data: object) -> int:
        nbytes = memoryview(data).nbytes  # type: ignore[arg-type]
        if nbytes != self._left_out:
            self.kept += bytes(data)  # type: ignore[call-overload]
        self.size += nbytes
        return nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing waits."""


def by_zipfile(stream: _Forward, entries: Iterable[tuple[str, list[bytes], int]]) -> None:
    """What `StoredZipWriter` writes, by Python's module."""
    with zipfile.ZipFile(stream, "w") as archive:  # type: ignore[call-overload]
        for name, parts, nbytes in entries:
            info = zipfile.ZipInfo(name)
            far = 20 if nbytes * 1.05 > zipfile.ZIP64_LIMIT else 0
            padding = -(stream.size + 30 + len(name) + far + 4) % ALIGNMENT
            info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
            info.file_size = nbytes
            with archive.open(info, "w", force_zip64=far > 0) as entry:
                for part in parts:
                    entry.write(part)


def by_ours(stream: _Forward, entries: Iterable[tuple[str, list[bytes], int]]) -> None:
    archive = StoredZipWriter(stream, ALIGNMENT)
    for name, parts, nbytes in entries:
        archive.add(name, parts, nbytes)
    archive.end()


def test_an_archive_is_that_of_zipfile() -> None:
    entries = [(name, [content[:50], content[50:]], len(content)) for name, content in ENTRIES.items()]
    expected, found = _Forward(), _Forward()
    by_zipfile(expected, entries)
    by_ours(found, entries)
    assert found.kept == expected.kept
    with zipfile.ZipFile(io.BytesIO(found.kept)) as archive:
        assert archive.testzip() is None and {name: archive.read(name) for name in archive.namelist()} == ENTRIES


@pytest.mark.parametrize("limit", [1 << 31, 10], ids=["as it is", "as if large"])
def test_entries_are_those_that_zipfile_finds(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes, places and the list's own place stand in 64 bits where they are above a limit."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in ENTRIES.items():
            archive.writestr(name, content)
    data = memoryview(stream.getvalue())
    assert (limit == 10) == (b"PK\x06\x06" in bytes(data))
    found = {f"archive/{name}": bytes(data[begin : begin + nbytes]) for name, (begin, nbytes) in read_entries(data).items()}
    assert found == ENTRIES
    for end in range(0, len(data), 997):
        with pytest.raises(ValueError, match=r"^it "):
            read_entries(data[:end])


def archive_of(*names: str, compression: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.comment = comment
        for name in names:
            archive.writestr(name, b"x" * 99)
    return stream.getvalue()


WHOLE = archive_of("archive/data.pkl")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (archive_of("archive/data.pkl", compression=zipfile.ZIP_DEFLATED), "compressed or encrypted, which torch does not do"),
        (WHOLE[:-22] + b"x" + WHOLE[-22:], "something stands between its list and its end"),
        (b"x" + WHOLE, "does not begin as an archive"),
        (b"PK\x03\x04" + WHOLE, "something stands between its list and its end"),
        (archive_of("archive/data.pkl", comment=b"PK"), "does not end as an archive"),
        (archive_of("archive/data.pkl", "archive/DATA.pkl"), "two of its entries have one name"),
        (archive_of("archive/data.pkl", "other/data.pkl"), "'other/data.pkl', which torch does not give"),
        (archive_of("archive/code/a"), "it is a program, not data: it has code/a"),
    ],
)
def test_what_torch_does_not_write_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_entries(memoryview(data))


@pytest.mark.long
@pytest.mark.parametrize("nbytes", [2_100_000_000, (1 << 31) + 5, (1 << 32) + 5], ids=["nearly 2 GiB", "2 GiB", "4 GiB"])
def test_large_archives_are_those_of_zipfile(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry whose size, and others whose places, need 64 bits; all but the large content is compared."""
    piece = bytes(1 << 24)
    parts = [piece] * (nbytes // len(piece)) + [piece[: nbytes % len(piece)]]
    monkeypatch.setattr(zipfile, "crc32", isal_zlib.crc32)  # zlib's would take seconds
    entries = [("archive/data.pkl", [b"x"], 1), ("archive/data/0", parts, nbytes), ("archive/version", [b"3\n"], 2)]
    expected, found = _Forward(len(piece)), _Forward(len(piece))
    by_zipfile(expected, entries)
    by_ours(found, entries)
    assert (found.kept, found.size) == (expected.kept, expected.size)
