"""Writing the pickles of torch without torch: the counterpart of `inert_pickle`.

`pickle.dump` imports every class that it names.  Here a class is a name, and an object says what makes it.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Global:
    """A class, function or value of a module."""

    module: str
    name: str


@dataclass(frozen=True)
class Call:
    """What a function returns for arguments."""

    function: Global
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Instance:
    """An object of a class: made without arguments, then given its state."""

    kind: Global
    state: Any = None


@dataclass(frozen=True)
class Outside:
    """What stands outside the pickle, under a key."""

    key: Any


@dataclass(frozen=True)
class Items:
    """A dictionary whose keys are objects."""

    items: Iterable[tuple[Any, Any]]


def dump(value: Any) -> bytes:
    """A pickle (protocol 2) of plain values, tuples, lists, dictionaries and the kinds above."""
    return b"".join((pickle.PROTO, b"\x02", *_parts(value), pickle.STOP))


def _parts(value: Any) -> Iterable[bytes]:
    match value:
        case None:
            yield pickle.NONE
        case bool():
            yield pickle.NEWTRUE if value else pickle.NEWFALSE
        case int() if -(1 << 31) <= value < 1 << 31:
            yield pickle.BININT + struct.pack("<i", value)
        case int():
            number = pickle.encode_long(value)
            yield pickle.LONG1 + bytes([len(number)]) + number
        case str():
            text = value.encode("utf-8", "surrogatepass")
            yield pickle.BINUNICODE + struct.pack("<I", len(text)) + text
        case tuple():
            yield from _sequence(pickle.MARK, value, pickle.TUPLE)
        case list():
            yield from _sequence(pickle.EMPTY_LIST + pickle.MARK, value, pickle.APPENDS)
        case dict():
            yield from _parts(Items(value.items()))
        case Items():
            yield from _sequence(pickle.EMPTY_DICT + pickle.MARK, [part for item in value.items for part in item], pickle.SETITEMS)
        case Global():
            yield pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode()
        case Call():
            yield from _sequence(b"", (value.function, value.args), pickle.REDUCE)
        case Instance():
            yield from _sequence(b"", (value.kind, ()), pickle.NEWOBJ)
            if value.state is not None:
                yield from _sequence(b"", (value.state,), pickle.BUILD)
        case Outside():
            yield from _sequence(b"", (value.key,), pickle.BINPERSID)
        case _:
            raise TypeError(f"{type(value).__name__} cannot be pickled so")


def _sequence(before: bytes, items: Iterable[Any], after: bytes) -> Iterable[bytes]:
    yield before
    for item in items:
        yield from _parts(item)
    yield after
