"""The collector of cycles while a process starts, and what transformers looks for in its files.

An import makes objects that stay, hundreds of thousands of them with torch and transformers, and Python's collector walks through them again and
again, once more when the process ends: together more than a third of the time until a command has its libraries.
"""

from __future__ import annotations

import gc

from common.transformers_modules import remember_modules

_USUAL = gc.get_threshold()
_RARELY = (100_000, 50, 50)
_is_over = False


def begins() -> None:
    """From now on the collector hardly works, until `is_over`; transformers takes the names of its models from a cache."""
    gc.set_threshold(*_RARELY)
    remember_modules()


def is_over() -> None:
    """The collector works as usual from now on, without what there is: called before large tensors are made, which must not wait in a cycle.

    Only the first call of a process counts: a model that was let go of since would be kept by another one.
    """
    global _is_over
    if not _is_over:
        _is_over = True
        gc.freeze()
        gc.set_threshold(*_USUAL)
