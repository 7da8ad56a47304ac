"""Reading a pickle without running it: every class it names becomes a plain record of its fields.

`pickle.load` executes what a file says.  Here only containers, sizes and dtypes of torch, which are values, are looked up;
anything else is a `Record`, which does nothing.  It also spares importing torch and the package that wrote the file.  What a
pickle costs is bounded by its size (`require_light`), and pickles inside of it, which some classes load in turn, are read as well.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from conversion.formats.dtypes import DTYPE_BYTES
from conversion.formats.pickle_names import plain_name
from conversion.formats.stored_zip import pickle_in, read_entries

_MAX_NESTED = 4  # pickles within pickles; a tensor within a state within TransformerEngine's bytes is two
_LOADS_BYTES = ("torch.storage._load_from_bytes", "io.BytesIO")  # make of bytes what is loaded in turn
_OLD_PARTS = 5  # of torch's form from before 2020: magic, version, system, content, keys of storages


class Record:
    """Whatever a pickle described by a class and its state: fields as attributes, any other state as `state`.

    Attributes:
        called: module and name of the class, or of the function whose result this stands for.
        args: what it was called with.
        states: how often it was given a state.
        named: all names of its pickle.
    """

    called = ""
    args: tuple[Any, ...] = ()
    state: Any = None
    states = 0
    named: ClassVar[set[str]] = set()

    def __new__(cls, *args: Any, **kwargs: Any) -> Record:
        """Made from any arguments, which are kept."""
        cls.named.update(_handed_on((args, kwargs), cls.called))
        self = super().__new__(cls)
        if args:
            self.args = args
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.named.update(_handed_on(state, self.called))
        if isinstance(state, dict):
            self.__dict__.update(state)
        self.state, self.states = state, self.states + 1

    def __setitem__(self, key: Any, value: Any) -> None:
        """Items of a dictionary subclass; ignored."""

    def append(self, value: Any) -> None:
        """Items of a list subclass; ignored."""

    add = extend = append

    def fields(self) -> dict[str, Any]:
        """The fields of a plain object, as Python would find them.

        Raises:
            ValueError: if it was made in another way than by giving one dictionary of fields to an empty object.
        """
        if self.args or self.states > 1 or not isinstance(self.state, dict | None):
            raise ValueError(f"a {self.called} is not made as it is written")
        return self.state or {}


def _handed_on(value: Any, receiver: str) -> Iterator[str]:
    """A name, on no list, for each function that loads bytes and is handed on: its receiver may call it, with bytes that nobody has seen."""
    if isinstance(value, type) and issubclass(value, Record) and value.called in _LOADS_BYTES:
        yield f"{value.called} by {receiver}"
    if isinstance(value, dict):
        value = (*value.keys(), *value.values())
    if isinstance(value, tuple | list | set):
        for part in value:
            yield from _handed_on(part, receiver)


class _OrderedDict(dict[Any, Any]):
    """A dictionary that may carry attributes, as `OrderedDict` does."""


def _encoded(text: object, encoding: object) -> bytes:
    """Bytes as the older protocols have them."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("it has no bytes where bytes should be")
    return text.encode("latin-1")


def _no_bytes(*args: object) -> bytes:
    """Empty bytes in the older protocols; a number would ask for as many zeros."""
    if args:
        raise ValueError("it has no bytes where bytes should be")
    return b""


_VALUES: dict[str, Any] = {
    "torch.Size": tuple,
    "collections.OrderedDict": _OrderedDict,
    "builtins.set": set,
    "builtins.bytes": _no_bytes,
    "_codecs.encode": _encoded,
    **{f"torch.{name}": name for name in DTYPE_BYTES},
}


@dataclass(frozen=True)
class InertPickle:
    """A pickle that was not run.

    Attributes:
        content: containers and numbers as they are; other objects as records.
        names: classes and functions that it names, sorted; those of pickles inside of it too.
    """

    content: Any
    names: list[str]


def load_inert(data: bytes, *, depth: int = 0) -> InertPickle:
    """What a pickle holds; a dtype of torch is its name, and what stands outside the pickle is its key.

    Args:
        depth: how many pickles it lies in.

    Raises:
        Exception: of many kinds, if it is corrupt, or costs more than its size explains.
    """
    return _load_first(io.BytesIO(data), depth)


def names_in_saved(data: bytes, *, depth: int = 0) -> list[str]:
    """The names in what `torch.save` wrote, in its present form or that from before 2020.

    Raises:
        Exception: of many kinds, if it is corrupt.
    """
    if data.startswith(b"PK"):
        archive = memoryview(data)
        return load_inert(pickle_in(archive, read_entries(archive)), depth=depth).names
    stream, names = io.BytesIO(data), set[str]()
    for _ in range(_OLD_PARTS):
        names.update(_load_first(stream, depth).names)
    return sorted(names)


def require_light_parts(path: Path) -> None:
    """Hold what `torch.save` wrote before 2020 to the bounds of `require_light`, before torch reads it.

    Raises:
        Exception: of many kinds, if it is corrupt, or asks for more work than its size explains.
    """
    with path.open("rb") as stream:
        for _ in range(_OLD_PARTS):
            if stream.peek(1):  # a plain pickle is one, which torch refuses by what it names
                require_light(stream)


def _load_first(stream: io.BytesIO, depth: int) -> InertPickle:
    """The pickle at the place of a stream, which is left behind it."""
    if depth > _MAX_NESTED:
        raise ValueError(f"it holds pickles in pickles, more than {_MAX_NESTED} deep")
    start = stream.tell()
    require_light(stream)
    data = stream.getbuffer()[start : stream.tell()]
    unpickler = _InertUnpickler(io.BytesIO(data))
    content = unpickler.load()
    nested = (name for saved in unpickler.saved() for name in names_in_saved(saved, depth=depth + 1))
    return InertPickle(content, sorted({*unpickler.names, *nested}))


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.names: set[str] = set()
        self._records: dict[str, type[Record]] = {}
        self._carriers: list[Record] = []  # which load bytes when they are loaded

    def find_class(self, module_name: str, global_name: str) -> Any:
        """A record for every class but containers, sizes and dtypes."""
        name = plain_name(module_name, global_name)
        self.names.add(name)
        if name in _VALUES:
            return _VALUES[name]
        if name not in self._records:
            kind = _carrier(self._carriers) if name in _LOADS_BYTES else Record
            self._records[name] = type("Record", (kind,), {"called": name, "named": self.names})
        return self._records[name]

    def persistent_load(self, key: Any) -> Any:
        """What stands outside the pickle: its key."""
        return key

    def saved(self) -> Iterable[bytes]:
        """What other bytes would be loaded as `torch.save` wrote them."""
        for record in self._carriers:
            for part in (record.args, record.state if isinstance(record.state, tuple) else ()):
                found = [value for value in part[:1] if value not in (None, b"")]
                if not all(isinstance(value, bytes) for value in found):
                    raise ValueError(f"it gives {record.called} no bytes")
                yield from found


def _carrier(made: list[Record]) -> type[Record]:
    """A kind of record that is noted when it is made."""

    class Carrier(Record):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            """As any record, and noted; not every operation of a pickle calls `__init__`."""
            made.append(self := super().__new__(cls, *args, **kwargs))
            return self

    return Carrier


# -- what a pickle costs its reader, found before it is read -------------------------------------------------------------

# A pickle can refer to what it has made, so a few bytes can stand for a tree of any size: forty pairs of the pair before take 2^40
# steps to be hashed.  What `torch.save` and Megatron write is about as large as what it stands for, so the file bounds the work.
_STEPS_PER_BYTE = 64  # checkpoints take less than three
_FREE_STEPS = 4096
_MAX_DEPTH = 100  # below which Python's own recursion is safe; checkpoints have less than twenty
_LONG_INTEGER = 1 << 60  # integers from here on can be chosen to have one hash, so that a dictionary compares each with all

_GROW = frozenset(("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"))
_PUT = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
_GET = frozenset(("GET", "BINGET", "LONG_BINGET"))

# Something that is made: how many parts it has, and how deep it is.  A list, as containers grow where they are.
_Piece = list[int]
_LEAF: _Piece = [1, 0]


def require_light(stream: IO[bytes]) -> None:
    """Go over a pickle, up to its end.

    Raises:
        ValueError: if it is corrupt, or asks for more work than its size explains.
    """
    start = stream.tell()
    size = stream.seek(0, 2) - start
    stream.seek(start)
    steps_left = _FREE_STEPS + _STEPS_PER_BYTE * size
    stack: list[_Piece | None] = []  # None is a mark
    memo: dict[int, _Piece] = {}
    for opcode, argument, _ in pickletools.genops(stream):
        name = opcode.name
        if name in _PUT:
            index: int = len(memo) if argument is None else argument
            if index > size:  # Python's reader would make room for all of them: one flipped bit can ask for 64 GB
                raise ValueError(f"it numbers an object {index}")
            memo[index] = _top(stack)
        elif name in _GET:
            if argument not in memo:
                raise ValueError(f"it refers to object {argument}, which it has not made")
            stack.append(memo[argument])
        elif name == "DUP":
            stack.append(_top(stack))
        elif name == "MARK":
            stack.append(None)
        elif opcode.stack_before:
            steps_left -= _combine(opcode, stack)
        elif opcode.stack_after:
            is_long = isinstance(argument, int) and abs(argument) >= _LONG_INTEGER
            stack.append([size, 0] if is_long else _LEAF)
        if steps_left < 0:
            raise ValueError("it stands for more than its size explains")


def _top(stack: list[_Piece | None]) -> _Piece:
    if not stack or (top := stack[-1]) is None:
        raise ValueError("it refers to nothing")
    return top


def _combine(opcode: pickletools.OpcodeInfo, stack: list[_Piece | None]) -> int:
    """Do to the stack what an operation does that takes something from it, and give the number of parts that it goes over."""
    used, singles = [], len(opcode.stack_before)
    if pickletools.markobject in opcode.stack_before:
        while stack and (piece := stack.pop()) is not None:
            used.append(piece)
        singles = opcode.stack_before.index(pickletools.markobject)
    elif opcode.name == "POP" and stack and stack[-1] is None:
        singles = 0
        stack.pop()
    for _ in range(singles):
        used.append(_top(stack))
        stack.pop()
    grown = used.pop() if opcode.name in _GROW else _LEAF
    parts, depth = grown[0] + sum(piece[0] for piece in used), max(grown[1], *(piece[1] + 1 for piece in used), 0)
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is more than {_MAX_DEPTH} deep")
    if opcode.stack_after:
        made = [0, 0] if grown is _LEAF else grown
        made[:] = parts, depth
        stack.append(made)
    return parts - grown[0] + 1
