"""A virtual environment as one file, which every node unpacks for its ranks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def pack_environment(venv: Path, packed: Path) -> None:
    """Write the environment, compiled modules and times included, which Python compares, as a tar file; complete or not at all.

    Raises:
        ValueError: if the folder is not a virtual environment, or tar fails.
    """
    if not (venv / "pyvenv.cfg").is_file():
        raise ValueError(f"{venv} is not a virtual environment (it has no pyvenv.cfg); set runtime.venv=DIRECTORY")
    packed.parent.mkdir(parents=True, exist_ok=True)
    partial = packed.with_name(f".{packed.name}.partial")
    words = ["tar", "--create", "--file", str(partial), "--directory", str(venv), "."]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"tar could not pack {venv}: {' '.join(done.stderr.split())}")
        os.replace(partial, packed)
    finally:
        partial.unlink(missing_ok=True)


def is_older(packed: Path, venv: Path) -> bool:
    """Whether packages were installed or removed since the environment was packed."""
    packages = venv.glob("lib/python*/site-packages")
    return any(path.stat().st_mtime > packed.stat().st_mtime for path in packages)
