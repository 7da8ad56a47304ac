"""The files of a rank's part of a checkpoint, written by threads of the rank, with their digests.

Megatron-core forks a process for each file, hands it what it writes as copies and faults, and nobody knows the digests then.  Threads see
the tensors where they are; hashing, checksums and writing let go of the interpreter.  The bytes are those of `torch.save`, one tensor after
the other, and go past the page cache where the file system allows it.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from common.background import Background
from conversion.formats.large_file import LargeFileWriter
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.torch_file import ALIGNMENT, save_tensor


@dataclass(frozen=True)
class ShardFile:
    """What a file is to hold: tensors, and objects that are pickled already, each with its name in the checkpoint."""

    name: str
    records: tuple[tuple[WriteItem, Tensor | io.BytesIO], ...]


@dataclass(frozen=True)
class WrittenFile:
    """What a file holds: its digest, and where each record lies."""

    digest: str
    places: list[WriteResult]


def write_file(directory: Path, file: ShardFile) -> WrittenFile:
    """Write a file and have it on the disk; its tensors are on the CPU."""
    places = []
    path = directory / file.name
    with LargeFileWriter(path) as stream:
        for item, data in file.records:
            stream.write(bytes(-stream.size % ALIGNMENT))
            start = stream.size
            if isinstance(data, Tensor):
                save_tensor(LazyTensor.of(item.index.fqn, data), stream)
            else:
                stream.write(data.getbuffer())
            length = stream.size - start
            places.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=_StorageInfo(file.name, start, length)))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return WrittenFile(stream.digest, places)


def nothing() -> None:
    """Nothing to do."""


class Writing:
    """The files of one save, which a call writes, one thread for each.

    Args:
        before: what has to be done first, as to wait until the tensors have their values.
        behind: what is done when all is written.

    Attributes:
        written: one for each file, after the call.
        error: what went wrong in its place; the ranks learn of it together.
    """

    def __init__(
        self,
        directory: Path,
        files: Sequence[ShardFile],
        write: Callable[[Path, ShardFile], WrittenFile],
        *,
        before: Callable[[], None] = nothing,
        behind: Callable[[], None] = nothing,
    ) -> None:
        self._directory, self._files, self._write, self._before, self._behind = directory, files, write, before, behind
        self._names = [file.name for file in files]
        self.written: list[WrittenFile] = []
        self.error: BaseException | None = None

    def __call__(self) -> None:
        """Write all, and let go of the tensors."""
        try:
            self._before()
            with ThreadPoolExecutor(max(1, len(self._files))) as threads:
                self.written = list(threads.map(self._write, [self._directory] * len(self._files), self._files))
            self._behind()
        except BaseException as error:
            self.error = error
        self._files = ()

    @property
    def digests(self) -> dict[str, str]:
        """File name -> digest, of what is written."""
        return {name: written.digest for name, written in zip(self._names, self.written, strict=False)}


class HostCopies:
    """Tensors as they are now, in memory of the host that is kept from save to save: new pages cost several times what copying does.

    The training need not stand still for it.  What the optimizer's step alone changes is read by the passes before that, so it is copied beside
    them, by threads, and the step waits for what is left.  Parameters that other ranks have updated are there when these passes have gathered them.

    Attributes:
        start: begins to copy beside the training, and gives what waits for it; a rehearsal has another one.
    """

    def __init__(self) -> None:
        self.start = _in_a_thread
        self._copies: list[Tensor] = []
        self._newest: _Copying | None = None  # NeMo copies what a trainer is made of, before there is any; an event has no copy

    def take(
        self, files: Sequence[ShardFile], *, until_step: Collection[int] = (), gathered_later: Collection[int] = ()
    ) -> list[ShardFile]:
        """The same files of copies, which the next call writes over; they have their values behind `begin` and `wait`.

        Args:
            until_step: storages (as `storage_name` gives them) that nothing but a gathering changes before `wait` is called; they are copied
                from `begin` on, all others at once.
            gathered_later: those of them that do not have their values before `begin` is told so.
        """
        self.wait()
        tensors = [data for file in files for _, data in file.records if isinstance(data, Tensor)]
        if [(copy.shape, copy.dtype) for copy in self._copies] != [(tensor.shape, tensor.dtype) for tensor in tensors]:
            self._copies = []
            self._copies = [torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu") for tensor in tensors]
        with torch._C.DisableTorchFunction():  # type: ignore[no-untyped-call]  # which asks for the device at every call
            storages = [storage_name(tensor) for tensor in tensors]
        now: list[tuple[Tensor, Tensor]] = []
        later: list[tuple[Tensor, Tensor]] = []
        gathered: list[tuple[Tensor, Tensor]] = []
        for storage, pair in zip(storages, zip(self._copies, tensors, strict=True), strict=True):
            (now if storage not in until_step else gathered if storage in gathered_later else later).append(pair)
        _copy(now)
        self._newest = _Copying(later, gathered)
        return with_tensors(files, self._copies)

    def begin(self, *, gathered: bool = True) -> None:
        """Begin to copy what has its value, and what is `gathered`, if that is so; asking again changes nothing; for the thread that trains."""
        if self._newest is not None:
            self._newest.begin(self.start, gathered=gathered)

    @property
    def wait(self) -> Callable[[], None]:
        """What waits until all of the newest `take` is copied, also for its begin; any thread may call it."""
        return nothing if self._newest is None else self._newest.wait


class _Copying:
    """What is copied for one save beside the training, in two parts."""

    def __init__(self, later: Sequence[tuple[Tensor, Tensor]], gathered: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._later, self._gathered = later, gathered
        self._waits: list[Callable[[], None]] = []
        self._all_begun = threading.Event()
        if not later and not gathered:
            self._all_begun.set()

    def begin(self, start: Callable[[Callable[[], None]], Callable[[], None]], *, gathered: bool) -> None:
        if self._all_begun.is_set():
            return
        if self._later:
            self._waits.append(start(_copying_beside(self._later)))
            self._later = ()
        if gathered and self._gathered:
            self._waits.append(start(_copying_beside(self._gathered)))
            self._gathered = ()
        if not self._gathered:
            self._all_begun.set()

    def wait(self) -> None:
        self._all_begun.wait()
        for wait in self._waits:
            wait()


def _in_a_thread(copy: Callable[[], None]) -> Callable[[], None]:
    return Background(copy).result


def storage_name(tensor: Tensor) -> int:
    """Tells the memory of a tensor of any shape from that of others, as long as some tensor lies in it."""
    name: int = tensor.untyped_storage()._cdata
    return name


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for copy, tensor in pairs:
        copy.copy_(tensor, non_blocking=True)
    _wait_for([tensor for _, tensor in pairs])


def _copying_beside(pairs: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """What copies the tensors as they are now, for a thread: a GPU does it beside its products, behind what it has to do already."""
    devices = {tensor.device for _, tensor in pairs if tensor.device.type != "cpu"}
    if not devices:
        return partial(_copy, pairs)
    [device] = devices
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))

    def copy() -> None:
        with torch.cuda.stream(stream):
            for target, tensor in pairs:
                target.copy_(tensor, non_blocking=True)
        stream.synchronize()

    return copy


def on_host(files: Sequence[ShardFile]) -> list[ShardFile]:
    """The same files, of tensors of the host: those that are there already themselves."""
    tensors = [data for file in files for _, data in file.records if isinstance(data, Tensor)]
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    _wait_for(tensors)
    return with_tensors(files, copies)


def _wait_for(tensors: Sequence[Tensor]) -> None:
    """Until what was copied of them to the host is there."""
    if any(tensor.device.type != "cpu" for tensor in tensors):
        torch.cuda.synchronize()


def with_tensors(files: Sequence[ShardFile], tensors: Sequence[Tensor]) -> list[ShardFile]:
    """The same files with other tensors of any shape, in their order."""
    left = iter(tensors)
    return [
        ShardFile(file.name, tuple((item, next(left) if isinstance(data, Tensor) else data) for item, data in file.records))
        for file in files
    ]
