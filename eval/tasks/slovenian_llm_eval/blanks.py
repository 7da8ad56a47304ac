"""WinoGrande: which of two names fills the blank, by the likelihood of what comes after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BLANK = "_"


def number_of_right_beginning(document: Mapping[str, Any]) -> int:
    """Which beginning is right, from 0; lm-eval takes this for the text where contexts are what is chosen."""
    return int(document["answer"]) - 1


def beginnings(document: Mapping[str, Any]) -> list[str]:
    """The sentence up to the blank, filled with each name."""
    before, _, _ = document["sentence"].partition(_BLANK)
    return [before + document[option] for option in ("option1", "option2")]


def rest(document: Mapping[str, Any]) -> str:
    """What comes after the blank."""
    _, _, after = document["sentence"].partition(_BLANK)
    return str(after).strip()
