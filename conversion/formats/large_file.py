"""Writing large files at the speed of the disk.

A copy through the page cache spends most of its time on getting a page of memory for every page of the file; direct writes
(O_DIRECT) need none, and leave what others have in that cache.  `DigestingWriter` is the plain way, for small files.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFER_BYTES = 8 << 20  # a multiple of every disk's block
_PIECE_BYTES = 256 << 10  # is in the processor's cache still when it is copied after hashing
_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only


class LargeFileWriter:
    """A new binary file that knows the digest of what was written to it; while one buffer is filled, the other is written.

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
        # Memory of its own pages, as direct writes must begin at one.
        self._buffers = [np.frombuffer(mmap.mmap(-1, BUFFER_BYTES), np.uint8) for _ in range(2)]
        self._filled = 0
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
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

    def flush(self) -> None:
        """Nothing to do before the end; here because `zipfile` asks for it."""

    def _hand_over(self) -> None:
        """Have the full buffer written, once the other one is."""
        self._wait()
        full, self._filled = self._buffers[0], 0
        self._buffers.reverse()
        self._pending = self._writer.submit(self._write, full.data)

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

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
            self._writer.shutdown()
            os.close(self._file)
