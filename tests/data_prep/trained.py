"""A tokenizer, or the words of texts, for tests that need one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.artifacts import Manifest
from data_prep.reading.documents import Documents
from data_prep.tokenizers.word_counts import WordCounts
from data_prep.train_tokenizer import train_tokenizers


def train_tokenizer(documents: Documents, output_dir: Path, *, vocab_size: int, kind: str = "bpe", **settings: Any) -> Manifest:
    """One tokenizer in a new directory, as `train_tokenizers`."""
    return train_tokenizers(documents, output_dir, kinds=(kind,), vocab_sizes=(vocab_size,), **settings)


def count_texts(texts: Iterable[str]) -> WordCounts:
    """The words of texts in memory."""
    counts = WordCounts()
    for text in texts:
        counts.count(text)
    return counts
