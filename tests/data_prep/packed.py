"""What a file holds, however it is compressed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow


def unpacked(path: Path) -> bytes:
    """The bytes of a plain, gzip or zstd file."""
    if path.suffix == ".zst":
        with pyarrow.CompressedInputStream(str(path), "zstd") as stream:
            return bytes(stream.read())
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
