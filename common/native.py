"""The compiled inner loops: built from C sources at first use, with the headers beside this file, and kept in the user's cache.

The compiler is the system's, else that of the Python package `ziglang`, which `make setup` installs where there is none.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.artifacts import digest_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADERS = Path(__file__).parent
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=gnu11")
_COMPILERS = ("cc", "gcc", "clang")


def cache_dir() -> Path:
    """Where compiled code is kept: XDG_CACHE_HOME or ~/.cache, in `scion`; a path that cannot be written to for a user without a home."""
    home = os.path.expanduser("~")  # "~" itself for a user id without an entry in passwd, as in containers
    return Path(os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home != "~" else os.devnull)) / "scion"


@cache
def load(source: Path) -> ctypes.CDLL:
    """The library of a C file, compiled if it is not yet in the cache.

    Raises:
        ValueError: if there is no compiler, or it fails.
    """
    compiler = _compiler()
    # -march=native: a home directory is often shared by machines of different kinds, so the processor is part of the name.
    text = b"".join(path.read_bytes() for path in (source, *sorted(_HEADERS.glob("*.h"))))
    key = digest_bytes(text + repr((_FLAGS, compiler, _processor())).encode()).removeprefix("xxh3:")
    target = cache_dir() / f"{source.stem}-{key[:16]}.so"
    try:
        if not target.exists():
            _compile(compiler, source, target)
        return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError) as error:
        message = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().split("\n")[0]
        raise ValueError(
            f"{source.name} could not be compiled by `{' '.join(compiler)}` into {target.parent}: {message or error}; try another compiler"
            " (gcc, clang, or `pip install ziglang`), or set XDG_CACHE_HOME to another folder"
        ) from error


def _compiler() -> tuple[str, ...]:
    if (found := next((path for name in _COMPILERS if (path := shutil.which(name))), None)) is not None:
        return (found,)
    if find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    raise ValueError("there is no C compiler, which Scion's loops over text need: install gcc or clang, or `pip install ziglang`")


def address(array: NDArray[Any] | None) -> ctypes.c_void_p:
    """Where a compiled loop finds the numbers of an array of any shape, which must lie one behind the other; None is no place."""
    assert array is None or array.flags.c_contiguous
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def _compile(compiler: Sequence[str], source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:  # several processes may be at it
        built = Path(directory) / target.name
        words = [*compiler, *_FLAGS, f"-I{_HEADERS}", "-o", str(built), str(source), "-lm"]
        subprocess.run(words, check=True, capture_output=True, timeout=300)
        os.replace(built, target)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
