"""The number of rows that a folder's tokenizer needs, and its digest, without transformers where tokenizer.json says all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


def _plain_identity(directory: Path) -> Identity | None:
    """By tokenizer.json alone; None where transformers might make something else of it, or might refuse it."""
    tokenizer = read_plain_backend(directory)
    if tokenizer is None:
        return None
    return Identity(backend_rows(tokenizer), backend_digest(tokenizer))
