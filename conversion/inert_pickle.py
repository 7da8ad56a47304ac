"""Reading a pickle without running it: every class it names becomes a plain record of its fields.

`pickle.load` executes what a file says.  Here only containers, sizes and dtypes of torch, which are values, are looked up;
anything else is a `Record`, which does nothing.  It also spares importing torch and the package that wrote the file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import IO, Any

from conversion.dtypes import DTYPE_BYTES


class Record:
    """Whatever a pickle described by a class and its state: fields as attributes, any other state as `state`.

    Attributes:
        called: module and name of the class, or of the function whose result this stands for.
        args: what it was called with.
    """

    called = ""
    args: tuple[Any, ...] = ()
    state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Record:
        """Made from any arguments, which are kept."""
        self = super().__new__(cls)
        if args:
            self.args = args
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Items of a dictionary subclass; ignored."""

    def append(self, value: Any) -> None:
        """Items of a list subclass; ignored."""

    add = extend = append


class _OrderedDict(dict[Any, Any]):
    """A dictionary that may carry attributes, as `OrderedDict` does."""


_VALUES: dict[tuple[str, str], Any] = {
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): _OrderedDict,
    ("builtins", "set"): set,
    **{("torch", name): name for name in DTYPE_BYTES},
}


def load_inert(stream: IO[bytes]) -> tuple[Any, list[str]]:
    """The content of a pickle, and which classes and functions it names that are no containers, sizes or dtypes.

    A dtype of torch is its name; what stands outside the pickle is its key.

    Raises:
        Exception: of many kinds, if it is corrupt.
    """
    data = stream.read()
    _require_plausible(data)
    unpickler = _InertUnpickler(io.BytesIO(data))
    return unpickler.load(), sorted(unpickler.records)


def _require_plausible(data: bytes) -> None:
    """Refuse a pickle that numbers an object higher than it can hold objects.

    Python's reader would make room for all of them: one flipped bit in a small file can ask for 64 GB.
    """
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "LONG_BINPUT") and (argument or 0) > len(data):
            raise ValueError(f"it numbers an object {argument}")


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream)
        self.records: dict[str, type[Record]] = {}

    def find_class(self, module_name: str, global_name: str) -> Any:
        """A record for every class but containers, sizes and dtypes."""
        if (module_name, global_name) in _VALUES:
            return _VALUES[module_name, global_name]
        name = f"{module_name}.{global_name}"
        return self.records.setdefault(name, type("Record", (Record,), {"called": name}))

    def persistent_load(self, key: Any) -> Any:
        """What stands outside the pickle: its key."""
        return key
