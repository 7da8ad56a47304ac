"""Whether an index may name a file so."""

from __future__ import annotations

from pathlib import Path

_MAX_BYTES = 255  # of a name, on every usual file system


def is_plain_name(name: object) -> bool:
    """A name without a folder, so that a downloaded index leads nowhere else, that a file system can have."""
    if not isinstance(name, str) or Path(name).name != name or name in ("", "..") or "\0" in name:
        return False
    return len(name.encode("utf-8", "surrogatepass")) <= _MAX_BYTES and not any("\ud800" <= letter <= "\udfff" for letter in name)
