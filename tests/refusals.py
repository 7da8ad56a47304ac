"""What a user did wrong ends in one sentence, word by word."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def refused(sentence: str) -> Iterator[None]:
    """A block that raises a ValueError of exactly this sentence."""
    with pytest.raises(ValueError) as error:
        yield
    assert str(error.value) == sentence
