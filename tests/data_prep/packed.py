"""What commands wrote, however it is compressed, and what they say when they refuse."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest


def unpacked(path: Path) -> bytes:
    """The bytes of a plain, gzip or zstd file."""
    if path.suffix == ".zst":
        with pyarrow.CompressedInputStream(str(path), "zstd") as stream:
            return bytes(stream.read())
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def rows(path: Path) -> list[dict[str, Any]]:
    """All records of a file of JSON lines, or of those below a directory in the order of their names."""
    files = sorted(path.rglob("*.jsonl*")) if path.is_dir() else [path]
    return [json.loads(line) for file in files for line in unpacked(file).splitlines()]


def outputs(directory: Path) -> dict[str, bytes]:
    """All files but the manifest, which names the moment and the arguments."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.name != "scion.json"}


def refusal(command: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The sentence with which a command refuses."""
    with pytest.raises(ValueError) as error:
        command(*arguments, **options)
    return str(error.value)
