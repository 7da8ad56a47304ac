"""How many rows a folder's tokenizer needs, and its digest, without transformers where its library adds nothing to tokenizer.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from common.python_path import python_path
from data_prep.tokenizers.files import backend_digest, backend_rows, load_tokenizer, rows_needed, tokenizer_digest
from data_prep.tokenizers.plain_tokenizer import read_plain_backend


@dataclass(frozen=True)
class Identity:
    """`rows_needed` and `tokenizer_digest` of a tokenizer."""

    rows_needed: int
    digest: str


def tokenizer_identity(directory: Path) -> Identity:
    """The identity of the tokenizer in a folder, as `load_tokenizer` would give it.

    Raises:
        ValueError: if it cannot be loaded.
    """
    if (found := _plain_identity(directory)) is not None:
        return found
    tokenizer = load_tokenizer(directory)
    return Identity(rows_needed(tokenizer), tokenizer_digest(tokenizer))


def identity_by_another_process(directory: Path) -> Identity:
    """The same from a process of its own: reading a large vocabulary keeps the interpreter, and all other threads of this one would wait.

    Raises:
        ValueError: if it cannot be loaded.
        RuntimeError: if the process fails otherwise; it says on stderr how.
    """
    environment = {**os.environ, "PYTHONPATH": python_path(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", _IN_THE_PROCESS, str(directory)], env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise RuntimeError(f"the process that read the tokenizer in {directory} ended with {done.returncode}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if isinstance(answer, str):
        raise ValueError(answer)
    return Identity(*answer)


# Ctrl-C reaches this process too, which has nothing to clean up and is done within seconds; it says nothing when nobody listens any more.
_IN_THE_PROCESS = """
import json, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
from data_prep.tokenizers.files import start_without_torch
from data_prep.tokenizers.identity import tokenizer_identity
start_without_torch()
try:
    found = tokenizer_identity(Path(sys.argv[1]))
    answer = [found.rows_needed, found.digest]
except ValueError as error:
    answer = str(error)
print()
print(json.dumps(answer))
"""


def _plain_identity(directory: Path) -> Identity | None:
    """By tokenizer.json alone; None where transformers might make something else of it, or might refuse it."""
    tokenizer = read_plain_backend(directory)
    if tokenizer is None:
        return None
    return Identity(backend_rows(tokenizer), backend_digest(tokenizer))
