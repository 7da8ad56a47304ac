"""Writing large files at the speed of the disk.

A copy through the page cache spends most of its time on getting a page of memory for every page of the file; direct writes
(O_DIRECT) need none, and leave what others have in that cache.  `DigestingWriter` is the plain way, for small files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFER_BYTES = 4 << 20  # a multiple of every disk's block
_NUM_BUFFERS = 4  # one is filled, one written, and the others wait, so that the disk does not
_PIECE_BYTES = 256 << 10  # is in the processor's cache still when it is copied after hashing
_ROWS_BYTES = 1 << 20  # the same for rows that are made there, of which so many are worth a call
_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only


class LargeFileWriter:
    """A new binary file that knows the digest of what was written to it; while one buffer is filled, others are written.

    Where a file system has no direct writes, and for what does not fill a buffer, it writes through the page cache.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            self._file = os.open(path, flags | _DIRECT, 0o666)
            self._direct = bool(_DIRECT)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._file, self._direct = os.open(path, flags, 0o666), False
        self._buffers = deque(np.frombuffer(_memory(), np.uint8) for _ in range(_NUM_BUFFERS))
        self._filled = 0
        self._writer = ThreadPoolExecutor(1)
        self._pending: deque[Future[None]] = deque()
        self._state = xxhash.xxh3_128()
        self.size = 0

    @property
    def digest(self) -> str:
        """Digest of all bytes so far; equal to `digest_file` of the closed file."""
        return f"xxh3:{self._state.hexdigest()}"

    def write(self, data: Buffer) -> int:
        """Take all of the data; returns its number of bytes.

        Raises:
            OSError: also of an earlier part, which is written meanwhile.
        """
        values = np.frombuffer(memoryview(data), np.uint8)
        done = 0
        while done < len(values):
            piece = values[done : done + min(_PIECE_BYTES, BUFFER_BYTES - self._filled)]
            self._state.update(piece.data)
            np.copyto(self._buffers[0][self._filled : self._filled + len(piece)], piece)
            self._filled += len(piece)
            done += len(piece)
            if self._filled == BUFFER_BYTES:
                self._hand_over()
        self.size += len(values)
        return len(values)

    def write_rows(self, shape: tuple[int, int], dtype: np.dtype[Any], fill: Callable[[int, np.ndarray], object]) -> None:
        """Take rows that are made where they leave from: to copy them takes as long as to make them.

        Args:
            shape: number of rows, and values of each.
            fill: writes the rows from a number on into (some_rows, num_values) of the dtype.

        Raises:
            OSError: also of an earlier part, which is written meanwhile.
        """
        num_rows, row_bytes, done = shape[0], shape[1] * dtype.itemsize, 0
        while done < num_rows:
            count = min(min(BUFFER_BYTES - self._filled, _ROWS_BYTES) // row_bytes, num_rows - done)
            if not count:  # a row that ends in the next buffer
                row = np.empty((1, shape[1]), dtype)
                fill(done, row)
                self.write(row.data)
                done += 1
                continue
            place = self._buffers[0][self._filled : self._filled + count * row_bytes]
            fill(done, place.view(dtype).reshape(count, shape[1]))
            self._state.update(place.data)
            self._filled += len(place)
            self.size += len(place)
            done += count
            if self._filled == BUFFER_BYTES:
                self._hand_over()

    def flush(self) -> None:
        """Nothing to do before the end; here because `zipfile` asks for it."""

    def _hand_over(self) -> None:
        """Have the full buffer written behind those that wait, and go on with the one that was written first."""
        self._pending.append(self._writer.submit(self._write, self._buffers[0].data))
        self._filled = 0
        self._buffers.rotate(-1)
        self._wait(_NUM_BUFFERS - 1)

    def _wait(self, num_left: int = 0) -> None:
        """Wait until at most so many buffers are still to be written."""
        while len(self._pending) > num_left:
            self._pending.popleft().result()

    def _write(self, view: memoryview) -> None:
        while view:
            try:
                written = os.write(self._file, view)
            except OSError as error:
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                written = 0
            if written < len(view):  # a part of a block is left, or the file system refuses: neither can go directly
                self._use_page_cache()
            view = view[written:]

    def _use_page_cache(self) -> None:
        if self._direct:
            fcntl.fcntl(self._file, fcntl.F_SETFL, fcntl.fcntl(self._file, fcntl.F_GETFL) & ~_DIRECT)
            self._direct = False

    def __enter__(self) -> LargeFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._wait()
                self._use_page_cache()
                self._write(self._buffers[0][: self._filled].data)
        finally:
            self._writer.shutdown(cancel_futures=True)
            os.close(self._file)


def _memory() -> mmap.mmap:
    """A buffer of its own pages, as direct writes must begin at one; of large ones, which a disk is told of in fewer words."""
    memory = mmap.mmap(-1, BUFFER_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
