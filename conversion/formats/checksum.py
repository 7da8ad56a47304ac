"""The checksum of zip archives at the speed of memory: zlib's own takes as long as all else that a conversion does to a byte."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common import native

if TYPE_CHECKING:
    from typing_extensions import Buffer

SOURCE = Path(__file__).with_suffix(".c")
_LONG = 1 << 12  # bytes from which on a call by address is worth it


def crc32(data: Buffer, before: int = 0) -> int:
    """Checksum of some bytes behind others whose checksum is `before`; equal to `zlib.crc32`."""
    view = memoryview(data)
    if view.nbytes >= _LONG and (compiled := _compiled()) is not None:
        values = np.frombuffer(view, np.uint8)
        return compiled(before, native.address(values), len(values))
    return zlib.crc32(view, before)


@cache
def _compiled() -> Callable[..., int] | None:
    """The function by the processor's own instructions; None without a compiler or such instructions."""
    library = native.load(SOURCE, has_equal=True)
    if library is None or not library.is_fast():
        return None
    function = library.crc32
    function.restype = ctypes.c_uint32
    function.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
    return function
