"""A small tokenizer trained on the demo's Slovene text, and a place for small files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.reading.documents import Documents
from tests.data_prep.trained import train_tokenizer
from tests.processes import ROOT

SLOVENE_TEXT = ROOT / "recipes/demo_text/sl.train.txt"


@pytest.fixture(scope="session")
def slovene_text() -> Path:
    return SLOVENE_TEXT


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer") / "sl"
    train_tokenizer(Documents([SLOVENE_TEXT]), directory, vocab_size=2000)
    return directory


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file and give its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def hidden_leftovers(tmp_path: Path) -> Callable[[], list[str]]:
    """Names of half-written directories that a command left behind."""
    return lambda: [path.name for path in tmp_path.rglob(".*partial*")]
