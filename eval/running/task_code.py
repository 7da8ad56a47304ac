"""What decides how a task asks and scores: its settings, and the code of its functions with all that they import of the same project.

A README beside the task changes nothing of it; a function elsewhere that scores its answers does.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import json
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from common.artifacts import combined_digest, digest_bytes
from common.python_code import bare_dump

_ROOT = Path(__file__).resolve().parents[2]
_OTHER_STAGES = tuple(
    _ROOT / stage for stage in ("common", "data_prep", "conversion", "recipes", "nemo_patches", "slurm")
)  # they score nothing
_LIBRARY = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib"))
# By name, since an image's own packages lie outside the environment that is laid over them.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# Where rows lie and what the task is called; requests, which hold all rows, are part of a task's identity themselves.
_NOT_SCORING = ("metadata", "dataset_path", "dataset_name", "dataset_kwargs", "tag", "group", "task_alias", "unsafe_code")


def task_code_digest(config: Mapping[str, Any]) -> str:
    """Identity of a loaded task's settings and code; comments, layout and docstrings do not count.

    Args:
        config: of the task, with its functions.
    """
    scoring = {name: value for name, value in config.items() if name not in _NOT_SCORING}
    settings = json.dumps(scoring, sort_keys=True, default=lambda value: getattr(value, "__qualname__", str(type(value))))
    files = code_files(path for function in _functions(scoring | {"rows": config.get("custom_dataset")}) if (path := _source(function)))
    return combined_digest({"settings": digest_bytes(settings.encode()), "code": digest_bytes("".join(sorted(map(_code, files))).encode())})


def _functions(value: Any) -> Iterator[Callable[..., Any]]:
    if isinstance(value, functools.partial):
        yield from _functions([value.func, *value.args, value.keywords])
    elif callable(value):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _functions(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _functions(entry)


def _source(function: Callable[..., Any]) -> Path | None:
    try:
        found = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # written in C
        return None
    return None if found is None else Path(found).resolve()


def code_files(starts: Iterator[Path]) -> set[Path]:
    """Files of one's own code that these files are or import, directly or not."""
    found: set[Path] = set()
    waiting = list(starts)
    while waiting:
        path = waiting.pop()
        if path in found or path.suffix != ".py" or not path.is_file():
            continue
        if not _INSTALLED.isdisjoint(path.parts) or any(path.is_relative_to(folder) for folder in (*_LIBRARY, *_OTHER_STAGES)):
            continue
        found.add(path)
        waiting += [imported for name in _imports(path) if (imported := _file_of(name, path.parent))]
    return found


def _imports(path: Path) -> tuple[str, ...]:
    """Names of modules that a file may import, anywhere in it."""
    return _imports_in(path.read_bytes())


@functools.lru_cache(maxsize=1024)  # tasks share most of their files
def _imports_in(content: bytes) -> tuple[str, ...]:
    names: list[str] = []
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names += [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
    return tuple(dict.fromkeys(names))


def _file_of(module: str, folder: Path) -> Path | None:
    """The file of a module, beside the one that imports it or wherever Python finds it."""
    beside = folder.joinpath(*module.split(".")).with_suffix(".py") if module else None
    if beside is not None and beside.is_file():
        return beside.resolve()
    try:
        spec = importlib.util.find_spec(module) if module else None
    except (ImportError, AttributeError, ValueError):  # a name inside a module, or a module that is not there
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve()


def _code(path: Path) -> str:
    return _code_of(path.read_bytes())


@functools.lru_cache(maxsize=1024)
def _code_of(content: bytes) -> str:
    return digest_bytes(bare_dump(ast.parse(content)).encode())
