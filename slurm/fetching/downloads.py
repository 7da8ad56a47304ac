"""Bringing files to a login node: resumed after an interruption, never in place before checksum correct; and the record of what was brought."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from common.plain_files import write_json
from common.progress import Counter

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60
_SHA256 = re.compile(r"[0-9a-f]{64}")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def require_sha256(text: str) -> str:
    """A checksum as users paste it, with or without `sha256:` in front.

    Raises:
        ValueError: if it is none.
    """
    plain = text.strip().lower().removeprefix("sha256:")
    if not _SHA256.fullmatch(plain):
        raise ValueError(f"{text!r} is not a SHA-256 checksum; expected 64 hexadecimal digits")
    return plain


def download(url: str, path: Path, *, sha256: str | None, progress: Counter | None = None) -> bool:
    """Bring a file, going on where an interrupted download stopped.

    Args:
        sha256: None where nobody names one: all that the server sends is taken then.
        progress: counts the bytes that come.

    Returns:
        False if it was there already.

    Raises:
        ValueError: if the server refuses, breaks off, or sends something else than the checksum says; nothing is in place then.
    """
    if path.exists():
        if sha256 is not None:
            require_content(path, sha256)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        _fetch(url, partial, progress)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        here = partial.stat().st_size if partial.exists() else 0
        raise ValueError(f"{url} could not be downloaded: {error}; {here:,} bytes are kept, the same command resumes from there") from error
    if sha256 is not None and (found := sha256_of(partial)) != sha256:
        partial.unlink()
        raise ValueError(f"{url} has the SHA-256 {found}, expected {sha256}; it was deleted: check the address and the checksum")
    os.replace(partial, path)
    return True


def require_content(path: Path, sha256: str) -> None:
    """Refuse a file that is not what it should be.

    Raises:
        ValueError: naming both checksums.
    """
    found = sha256_of(path)
    if found != sha256:
        raise ValueError(
            f"{path} has the SHA-256 {found}, expected {sha256}: it is damaged or another version; remove it and run the command again"
        )


def _fetch(url: str, partial: Path, progress: Counter | None) -> None:
    here = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={here}-"} if here else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and here:  # nothing is left to send: the checksum decides
            return
        raise
    with response:
        if response.status != 206:  # the server sends the whole file again
            here = 0
        length = response.headers.get("Content-Length")
        total = here + int(length) if length else None
        with open(partial, "ab" if here else "wb") as stream:
            while chunk := response.read(_CHUNK_BYTES):
                stream.write(chunk)
                here += len(chunk)
                if progress is not None:
                    progress.advance(len(chunk))
    if total is not None and here < total:
        raise http.client.IncompleteRead(b"", total - here)


RECORD_NAME = "prefetched.json"


@dataclass(frozen=True)
class Entry:
    """One file: its address, size in bytes and SHA-256."""

    source: str
    size: int
    sha256: str


def read_record(cache_dir: Path) -> dict[str, Entry]:
    """Entries by their path in the cache; empty before the first.

    Raises:
        ValueError: if the record is damaged.
    """
    path = cache_dir / RECORD_NAME
    if not path.exists():
        return {}
    try:
        return {name: Entry(**entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); remove it and run slurm.prefetch again: undamaged files are not downloaded again"
        ) from error


def add_to_record(cache_dir: Path, path: Path, *, source: str, sha256: str | None = None) -> Entry:
    """Record a file of the cache.

    Args:
        sha256: where it is known already; else the file is read.
    """
    entry = Entry(source, path.stat().st_size, sha256 or sha256_of(path))
    record = read_record(cache_dir)
    record[path.relative_to(cache_dir).as_posix()] = entry
    write_json(cache_dir / RECORD_NAME, {name: asdict(one) for name, one in sorted(record.items())})
    return entry


def check_record(cache_dir: Path) -> list[str]:
    """What is missing or changed, a sentence each; reads every file."""
    problems = []
    for name, entry in read_record(cache_dir).items():
        path = cache_dir / name
        if not path.is_file():
            problems.append(f"{path} is missing; fetch it again from {entry.source}")
            continue
        try:
            require_content(path, entry.sha256)
        except ValueError as error:
            problems.append(str(error))
    return problems
