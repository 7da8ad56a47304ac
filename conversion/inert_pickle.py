"""Reading a pickle without running it: every class it names becomes a plain record of its fields.

`pickle.load` executes what a file says.  Here only sizes and dtypes of torch, which are values, are looked up; anything else
is a `Record`, which does nothing.  It also spares importing the package that wrote the file.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO

import torch


class Record:
    """Whatever a pickle described by a class and its state: fields as attributes, any other state as `state`."""

    state: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Record:
        """Made from any arguments, which are ignored."""
        return super().__new__(cls)

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


def load_inert(stream: BinaryIO) -> Any:
    """The content of a pickle.

    Raises:
        Exception: of many kinds, if it is corrupt.
    """
    return _InertUnpickler(stream).load()


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        """A record for every class but sizes and dtypes."""
        if module_name == "torch" and global_name == "Size":
            return torch.Size
        if module_name == "torch" and isinstance(dtype := getattr(torch, global_name, None), torch.dtype):
            return dtype
        return Record
