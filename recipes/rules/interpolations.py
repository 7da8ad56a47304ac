"""What the interpolations of a recipe stand for, `${schedule.max_steps}` and the like, before OmegaConf works them out.

It does so again wherever a key is named, so forty lines that each name the one before twice would take it years and all memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from common.plain_files import MAX_DEPTH

_VARIABLE = re.compile(r"\$\{\s*oc\.env:\s*['\"]?(\w+)[^${}]*\}")
_NUMBER_OF_VARIABLE = re.compile(r"\$\{\s*oc\.decode:\s*(?=\$\{\s*oc\.env:[^${}]*\}\s*\})")
_KEY = re.compile(r"\$\{\s*(\.*)([^${}:]*?)\s*\}")
# What interpolations may make of a recipe: so many times its length, and as much more, which leaves honest recipes room.
_MAX_GROWTH, _MAX_GROWTH_START = 10, 100_000

Place = tuple[str, ...]


def require_bounded_interpolations(content: object) -> None:
    """Refuse a recipe whose interpolations stand for much more than what is written, or for themselves.

    Args:
        content: the recipe as dictionaries and lists, interpolations as they are written.

    Raises:
        ValueError: from the key on, without the recipe's name; also for an interpolation that names neither a key nor a variable.
    """
    _Sizes(content).of((), 0)


class _Sizes:
    """Characters and nodes of each place once the interpolations are worked out."""

    def __init__(self, content: object) -> None:
        self._content = content
        self._known: dict[Place, int] = {}
        self._under_way: set[Place] = set()
        self._limit = _MAX_GROWTH * sum(len(text) + 1 for text in _texts(content)) + _MAX_GROWTH_START

    def of(self, place: Place, depth: int) -> int:
        """Raises ValueError where it is too much; `depth` counts interpolations within interpolations."""
        if place in self._known:
            return self._known[place]
        if place in self._under_way:
            raise ValueError(f"{_name(place)} contains itself by an interpolation; write out what is meant")
        if depth > MAX_DEPTH:
            raise ValueError(f"{_name(place)} is named by more than {MAX_DEPTH} interpolations in a row; write out what is meant")
        self._under_way.add(place)
        node, _ = self._find(place)
        if isinstance(node, (dict, list)):
            size = 1 + sum(self.of((*place, key), depth) for key in _children(node))
        else:
            size = 1 + len(str(node)) + sum(self._size_of(found, place, depth) for found in re.finditer(r"\$\{", str(node)))
        if size > self._limit:
            wrong = f"stands for more than {self._limit:,} characters once its interpolations are worked out"
            raise ValueError(f"{_name(place)} {wrong}; write out what is meant")
        self._under_way.remove(place)
        self._known[place] = size
        return size

    def _size_of(self, found: re.Match[str], place: Place, depth: int) -> int:
        if variable := _VARIABLE.match(found.string, found.start()):
            return 1 + len(os.environ.get(variable[1], ""))
        if _NUMBER_OF_VARIABLE.match(found.string, found.start()):
            return 1  # the variable itself is counted where it is named
        key = _KEY.match(found.string, found.start())
        if key is None:
            raise ValueError(
                f"{_name(place)} is {found.string[:60]!r}; an interpolation names a key, such as ${{schedule.max_steps}}, or a variable"
                " of the environment, such as ${oc.env:HOME}; write out what is meant"
            )
        above = place[: max(0, len(place) - len(key[1]))] if key[1] else ()
        _, named = self._find((*above, *filter(None, re.split(r"[.\[\]]", key[2]))))
        return 1 + (0 if named is None else self.of(named, depth + 1))

    def _find(self, place: Place) -> tuple[object, Place | None]:
        """What is there, and its place; that of an interpolation on the way, which stands for more; None where there is nothing."""
        node = self._content
        for length, key in enumerate(place):
            if isinstance(node, str):
                return node, place[:length]
            children = _children(node)
            if key not in children:
                return None, None
            node = children[key]
        return node, place


def _children(node: object) -> dict[str, object]:
    if isinstance(node, dict):
        return {str(key): value for key, value in node.items()}
    return {str(index): value for index, value in enumerate(node)} if isinstance(node, list) else {}


def _texts(node: object) -> Iterator[str]:
    """All keys and values."""
    if not isinstance(node, (dict, list)):
        yield str(node)
    for key, child in _children(node).items():
        yield key
        yield from _texts(child)


def _name(place: Place) -> str:
    return ".".join(place) or "it"
