"""Values of filter settings, checked for their type; an error names the place of a wrong one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any


def switch(where: str, value: Any) -> bool:
    """True or false; nothing is false.

    Raises:
        ValueError: if it is neither, such as `off`, which is text here.
    """
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{where} is {value!r}; expected true or false")
    return bool(value)


def number(where: str, value: Any, low: float | None = None, high: float | None = None) -> float | None:
    """A number within limits; None of what is switched off.

    Raises:
        ValueError: if it is something else, beyond the limits, infinite or NaN.
    """
    if value is False or value is None:
        return None
    is_number = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    if not is_number or (low is not None and value < low) or (high is not None and value > high):
        expected = f"a number from {low:g}" + (f" to {high:g}" if high is not None else "") if low is not None else "a number"
        raise ValueError(f"{where} is {value!r}; expected {expected}, or false")
    return float(value)


def count(where: str, value: Any, least: int = 0) -> int:
    """A whole number of at least so many.

    Raises:
        ValueError: if it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{where} is {value!r}; expected a whole number from {least}")
    return value


def text(where: str, value: Any) -> str:
    """A text with something in it.

    Raises:
        ValueError: if it is something else.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} is {value!r}; expected text")
    return value


def texts(where: str, value: Any) -> tuple[str, ...]:
    """The texts of a list, of which whole numbers are some too; none of what is switched off.

    Raises:
        ValueError: if it is not a list, or something in it is not text.
    """
    if value is False or value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"{where} is {value!r}; expected a list of texts, such as [one, two], or false")
    plain = [str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in value]
    return tuple(text(f"{where}, item {place}", item) for place, item in enumerate(plain, start=1))


def mapping(where: str, value: Any, known: Set[str]) -> Mapping[str, Any]:
    """A mapping of known keys.

    Raises:
        ValueError: if it is none, or has another key.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}; expected a mapping with {', '.join(sorted(known))}, or false")
    if unknown := set(value) - known:
        raise ValueError(f"{where} has the unknown key {', '.join(sorted(unknown))}; the known ones are {', '.join(sorted(known))}")
    return value


def require_in_order(where: str, minimum: float | None, maximum: float | None) -> None:
    """Refuse limits between which nothing is.

    Raises:
        ValueError: if the minimum is above the maximum.
    """
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ValueError(f"{where} has min {minimum:g} above max {maximum:g}, so no text would pass; change one of them")


def require_text_keys(value: Any, where: str = "") -> None:
    """Refuse a key that is not text, such as a number, anywhere in a value.

    Raises:
        ValueError: naming it and where it is.
    """
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if not isinstance(key, str):
            raise ValueError(f"{where or 'the file'} has the key {key!r}, which is not text; write it in quotes")
        require_text_keys(item, f"{where}: {key}" if where else key)
