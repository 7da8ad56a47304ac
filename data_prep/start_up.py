"""The collector of cycles while a process starts.

An import makes objects that stay, hundreds of thousands of them with torch and transformers, and Python's collector walks through them again and
again, once more when the process ends: together more than a third of the time until a command has its libraries.
"""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_RARELY = (100_000, 50, 50)


def begins() -> None:
    """From now on the collector hardly works, until `is_over`."""
    gc.set_threshold(*_RARELY)


def is_over() -> None:
    """The collector works as usual from now on, without what there is: called before large tensors are made, which must not wait in a cycle."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
