"""What transformers finds in its files whenever it is imported, kept from one process to the next.

At its import it opens the 2,800 files of all its models to learn the names that they export: half a second of a processor, and on a parallel file
system as many requests, times the number of ranks.  They are the same as long as it is the same installation.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULE, _FUNCTION = "transformers.utils.import_utils", "create_import_structure_from_path"
_INSTALLED = ("site-packages", "dist-packages")  # files below these change together, and with their times


def remember_modules() -> None:
    """From now on, an import of transformers takes these names from the user's cache; doing it twice is doing it once.

    Where they cannot be kept, or transformers is no installed package of the form that is known, it reads its files as ever.
    """
    if _MODULE not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the one module that reads all files."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See importlib."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """The usual one."""

    def exec_module(self, module: ModuleType) -> None:
        """See importlib."""
        super().exec_module(module)
        models = Path(self.path).parents[1] / "models"
        original = getattr(module, _FUNCTION, None)
        if original is not None and models.is_dir() and any(name in models.parts for name in _INSTALLED):
            setattr(module, _FUNCTION, _remembered(original, models))


def _remembered(original: Callable[[Any], dict[Any, Any]], models: Path) -> Callable[[Any], dict[Any, Any]]:
    """The function, which takes the names below `models` from the cache."""

    @wraps(original)
    def names_below(module_path: Any) -> dict[Any, Any]:
        path = Path(module_path)
        if path != models and path != models / "__init__.py":
            return original(module_path)
        content = _kept(file := _cache_file(models))
        if content is not None:
            kept: dict[Any, Any] = marshal.loads(content)
            return kept
        found = original(module_path)
        with contextlib.suppress(ValueError):  # of another version's types
            _keep(file, marshal.dumps(found))
        return found

    return names_below


def _cache_file(models: Path) -> Path:
    from common.artifacts import digest_bytes  # here, as every command loads this module and few come to this
    from common.native import cache_dir

    package = models.parent
    times = [path.stat().st_mtime_ns for path in (models, package / "utils" / "import_utils.py")]
    version = digest_bytes((package / "__init__.py").read_bytes())  # images of containers may give all files one time
    key = digest_bytes(repr((str(models), times, version, sys.implementation.cache_tag)).encode()).removeprefix("xxh3:")
    return cache_dir() / f"transformers-modules-{key[:16]}"


def _kept(file: Path) -> bytes | None:
    """What a process has kept, if it is whole."""
    from common.artifacts import digest_bytes

    try:
        digest, _, content = file.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if digest == digest_bytes(content).encode() else None


def _keep(file: Path, content: bytes) -> None:
    """Write a file aside and rename it; a cache that cannot be written is none."""
    from common.artifacts import digest_bytes

    aside = file.with_name(f"{file.name}.{os.urandom(8).hex()}.partial")  # ranks of other nodes share the folder, and numbers of processes
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(digest_bytes(content).encode() + b"\n" + content)
        aside.replace(file)
    with contextlib.suppress(OSError):
        aside.unlink(missing_ok=True)
