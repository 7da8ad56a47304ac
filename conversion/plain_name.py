"""Whether an index may name a file so."""

from __future__ import annotations

from pathlib import Path


def is_plain_name(name: object) -> bool:
    """A name without a folder, so that a downloaded index leads nowhere else."""
    return isinstance(name, str) and Path(name).name == name and name not in ("", "..") and "\0" not in name
