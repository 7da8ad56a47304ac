"""Giving back the pages of a mapped file: those that were touched stay in memory until the mapping goes, as if all of the file were held."""

from __future__ import annotations

import mmap

import numpy as np


def release_pages(values: object) -> None:
    """Give back all pages of the file that an array is mapped from; they come again when they are touched.  Does nothing to anything else.

    What was written to a private mapping would be lost, so it is for arrays that are only read.
    """
    owner = values
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner  # as numpy.frombuffer holds it
    if isinstance(owner, mmap.mmap):
        owner.madvise(mmap.MADV_DONTNEED)
