"""Settings of glibc's memory allocator: a conversion returns freed memory to the system, a rank that trains on a CPU keeps it for reuse.

With another C library none of this does anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

MAPPED_BYTES = 4 << 20  # from which on it is cheaper to map a span's pages than to get memory for them
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8  # the constants M_... of malloc.h


def return_freed_memory() -> None:
    """Let every large block go back to the system when it is freed, and keep what small ones need for the next.

    By default glibc learns from the first one to keep them, and the holes between the tensors of each layer add up.
    """
    _set({_MMAP_THRESHOLD: MAPPED_BYTES, _TRIM_THRESHOLD: 4 * MAPPED_BYTES})


def keep_freed_memory() -> None:
    """Let every block be used again by the next, and its pages be large ones where the system has them.

    By default glibc maps every tensor of more than 32 MB anew, and the system clears its pages, in every step of a rank.  Evaluation and a loop in
    plain torch were no faster for it.  To be called before torch allocates.
    """
    _set({_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _TOP_PAD: 16 * MAPPED_BYTES})
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read by torch at its first allocation


def return_free_pieces() -> None:
    """Let the small pieces that were freed go back now, which larger blocks do not fit in."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _set(values: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in values.items():
            libc.mallopt(parameter, value)
