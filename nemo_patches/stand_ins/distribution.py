"""A distribution that is not installed, for libraries that ask a package's metadata for its version."""

from __future__ import annotations

import importlib.machinery
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any


class StandInDistribution(Distribution):
    """Name and version alone."""

    def __init__(self, name: str, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """The metadata, and no other file."""
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        """Where a file would lie."""
        return Path(path)


class StandInFinder(DistributionFinder):
    """Finds one distribution by its name, on `sys.meta_path`; it imports nothing."""

    def __init__(self, name: str, version: str) -> None:
        self._name, self._found = name, StandInDistribution(name, version)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """No module."""
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:  # type: ignore[override]
        """The one distribution, if it is asked for or all are."""
        if context is None or context.name is None or context.name.replace("_", "-").lower() == self._name:
            yield self._found
