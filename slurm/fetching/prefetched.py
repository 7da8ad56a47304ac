"""The record of what a login node brought for the jobs: where from, and with which content."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm.fetching.downloads import require_content, sha256_of

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
        raise ValueError(f"{path} is damaged ({error}); remove it and prefetch again: what is whole is not fetched twice") from error


def add_to_record(cache_dir: Path, path: Path, *, source: str, sha256: str | None = None) -> Entry:
    """Record a file of the cache.

    Args:
        sha256: where it is known already; else the file is read.
    """
    entry = Entry(source, path.stat().st_size, sha256 or sha256_of(path))
    record = read_record(cache_dir)
    record[path.relative_to(cache_dir).as_posix()] = entry
    partial = cache_dir / f".{RECORD_NAME}.partial"
    partial.write_text(json.dumps({name: asdict(one) for name, one in sorted(record.items())}, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, cache_dir / RECORD_NAME)
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
