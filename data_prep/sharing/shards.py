"""Parallel work on shards: results in order, outputs that are complete or absent, and runs that resume."""

from __future__ import annotations

import errno
import fcntl
import gzip
import io
import json
import multiprocessing
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from common.artifacts import free_output, make_group_readable, make_place, sync_tree, written_aside
from common.process_identity import end_with_parent
from data_prep.reading.compressed import compression_of
from data_prep.reading.documents import SUFFIXES
from data_prep.sharing import on_ray

Item = TypeVar("Item")
Result = TypeVar("Result")

_LEVEL = 4  # of gzip: twice the speed of its default for 5 % more bytes
_PLAN, _OUTPUT, _SCRATCH = "plan.json", "output", "scratch"  # in the hidden directory of an unfinished run


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int,
    name: Callable[[Item], str] = str,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[Any, ...] = (),
) -> Iterator[Result]:
    """Yield the results of a function in the order of its items; at most two more than `workers` are started and not yet taken.

    One worker is this process; others end with it, however it ends, and at once when it is told to end.  With `--ray` the
    machines of a cluster do it.

    Args:
        name: what errors call an item.

    Raises:
        ValueError: if a worker dies (killed, out of memory), naming what was being worked on.
    """
    if (leader := on_ray.leader()) is not None:
        yield from leader.map(function, items, name=name, initializer=initializer, initargs=initargs)
        return
    if workers == 1:
        if initializer is not None:
            initializer(*initargs)
        yield from map(function, items)
        return
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    if isinstance(items, Sized):
        workers = min(workers, max(1, len(items)))  # all of a pool's are started at once
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _start_worker, (initializer, initargs))
    try:
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            if len(waiting) >= workers + 2:
                yield waiting.popleft()[1].result()
        while waiting:
            yield waiting[0][1].result()
            waiting.popleft()
    except BrokenProcessPool as error:
        names = ", ".join(name(item) for item, _ in waiting)
        raise ValueError(
            f"a worker process died, killed or out of memory, while these were worked on: {names}; run again with fewer --workers"
        ) from error
    except (SystemExit, KeyboardInterrupt):
        for process in multiprocessing.active_children():
            process.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    end_with_parent()
    if initializer is not None:
        initializer(*initargs)


class JsonLinesWriter:
    """A new `.jsonl`, `.jsonl.gz` or `.jsonl.zst` file that gets its name when it is complete; the same records give the same bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._partial, "wb")  # noqa: SIM115 closed by __exit__
        self._packed = _compressor(path.suffix, self._file)
        self._stream: Any = io.BufferedWriter(self._packed, 1 << 18) if self._packed else self._file

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        self._stream.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")

    def write_lines(self, lines: bytes | memoryview) -> None:
        """Append records that are lines of JSON already, in the form of `write`."""
        self._stream.write(lines)

    def __enter__(self) -> JsonLinesWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._stream.flush()
                if self._packed is not None:
                    self._packed.close()
                self._file.close()
                os.replace(self._partial, self._path)
        finally:
            try:
                self._file.close()  # on a full disk this may fail once more
            finally:
                self._partial.unlink(missing_ok=True)


def _compressor(suffix: str, file: Any) -> Any:
    """A stream that compresses into a file, None where it is written as it is."""
    if suffix == ".gz":
        return gzip.GzipFile("", "wb", _LEVEL, file, mtime=0)
    if suffix == ".zst":
        import pyarrow

        return pyarrow.CompressedOutputStream(_KeptOpen(file), "zstd")
    return None


class _KeptOpen(io.RawIOBase):
    """A file that is not closed with the stream that compresses into it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:
        """Pass on some bytes."""
        written: int = self._file.write(data)
        return written


@contextmanager
def resumable_directory(output_dir: Path, plan: Mapping[str, Any]) -> Iterator[tuple[Path, Path]]:
    """Two hidden directories: one becomes `output_dir` when the block ends without an error, the other is for what only the work needs.

    Both lie in `.OUTPUT.unfinished` and wait there for the next run with the same plan if the block does not end, at whatever step: what is
    needed to go on is removed only behind the rename, when there is nothing to go on with any more.

    Args:
        plan: all that the output depends on (options, inputs); a run with another plan does not touch what the first left.

    Yields:
        (what becomes the output, scratch); both may hold what an earlier run left, which is there to be used.

    Raises:
        ValueError: if `output_dir` is there and not empty, if another run is at work on it, or if an unfinished one had another plan.
    """
    try:
        output_dir = free_output(output_dir)
    except ValueError:
        _remove_if_renamed(output_dir)
        raise
    unfinished = _unfinished(output_dir)
    make_place(output_dir, unfinished)
    with _locked(unfinished, output_dir):
        _require_plan(unfinished, plan)
        with _made_of(unfinished, output_dir) as (directory, scratch):
            yield directory, scratch


@contextmanager
def _made_of(unfinished: Path, output_dir: Path) -> Iterator[tuple[Path, Path]]:
    directory, scratch = unfinished / _OUTPUT, unfinished / _SCRATCH
    try:
        for partial in unfinished.rglob(".*.partial"):  # of a run that was killed
            partial.unlink()
        for place in (directory, scratch):
            place.mkdir(exist_ok=True)
        yield directory, scratch
        make_group_readable(directory)
        sync_tree(directory)
        if (leader := on_ray.leader()) is not None:
            leader.check()
        if output_dir.is_dir():
            output_dir.rmdir()
        os.replace(directory, output_dir)
        shutil.rmtree(unfinished, ignore_errors=True)
    except BaseException as error:
        waiting = _holds_work(unfinished)
        if not waiting:
            shutil.rmtree(unfinished, ignore_errors=True)  # nothing to go on with
        _tell_what_waits(error, output_dir, unfinished if waiting else None)
        raise


def _unfinished(output_dir: Path) -> Path:
    output_dir = Path(os.path.abspath(output_dir))
    return output_dir.parent / f".{output_dir.name}.unfinished"


def _remove_if_renamed(output_dir: Path) -> None:
    """Remove what a run that was killed behind its rename, or while it removed this, left: its output is complete."""
    unfinished = _unfinished(output_dir)
    if os.path.isdir(unfinished) and not (unfinished / _OUTPUT).exists() and output_dir.is_dir() and any(output_dir.iterdir()):
        shutil.rmtree(unfinished)


@contextmanager
def _locked(unfinished: Path, output_dir: Path) -> Iterator[None]:
    if on_ray.leader() is not None:  # whose lease is known on all machines; where this one's lock ends nobody knows
        yield
        return
    lock = os.open(unfinished, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock), os.stat(unfinished)):
                raise FileNotFoundError  # the other run finished between our opening and our locking
        except (BlockingIOError, FileNotFoundError) as error:
            raise ValueError(
                f"another run is writing {output_dir} ({unfinished} is locked); wait for it or choose another --output"
            ) from error
        yield
    finally:
        os.close(lock)


def _holds_work(unfinished: Path) -> bool:
    """Whether there is something to go on with: a complete file."""
    files = (path for part in (_OUTPUT, _SCRATCH) for path in (unfinished / part).rglob("*"))
    return any(path.is_file() and not path.name.endswith(".partial") for path in files)


def _tell_what_waits(error: BaseException, output_dir: Path, unfinished: Path | None) -> None:
    """Turn what ended the work into a sentence that says what is kept, where the system or the user ended it."""
    kept = f"finished shards are kept in {unfinished}" if unfinished is not None else "nothing was finished yet"
    if isinstance(error, KeyboardInterrupt) and not error.args:
        raise KeyboardInterrupt(f"{kept}; the same command resumes") from error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise ValueError(
            f"the disk is full while writing {output_dir}: {error}; free some space and run the same command again: {kept}"
        ) from error


def _require_plan(unfinished: Path, plan: Mapping[str, Any]) -> None:
    text = json.dumps(plan, sort_keys=True, indent=1, default=str) + "\n"
    path = unfinished / _PLAN
    if not path.exists() or not _holds_work(unfinished):
        for left in unfinished.iterdir():  # by a run that was killed before it wrote its plan, or while it removed all
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()
        with written_aside(path) as file:
            file.write(text.encode())
    elif path.read_text(encoding="utf-8") != text:
        raise ValueError(
            f"{unfinished} was left by a run with other options or inputs; run the same command to finish it, remove it, or choose another"
            " --output"
        )


def shard_names(paths: Iterable[Path]) -> list[str]:
    """Names of output shards: number and stem of each input, so that they sort as given and never meet; compressed if the input is, zstd as zstd."""
    names = []
    for number, path in enumerate(paths):
        name = path.name.lower()
        cut = max((len(suffix) for suffix in SUFFIXES if name.endswith(suffix)), default=0)
        stem = path.name[: len(name) - cut]
        compression = compression_of(path)
        packed = ".zst" if compression == ".zst" else ".gz" if compression or name.endswith(".parquet") else ""
        names.append(f"{number:05d}_{stem}.jsonl{packed}")
    return names


def finished_shard(done: Path, state: object, *files: Path) -> dict[str, Any] | None:
    """What `finish_shard` wrote of a shard, if it was made of the same input; None if it must be made (again).

    Args:
        files: of the shard, without which it is not finished.
    """
    try:
        record: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        if record.pop("input") == state and all(path.exists() for path in files):
            return record
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, AttributeError):  # cut by a machine that went down
        pass
    done.unlink()
    return None


def finish_shard(done: Path, state: object, record: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Write what is known of a shard, as the last of its files."""
    done.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(done) as file:
        file.write((json.dumps({"input": state, **record}, ensure_ascii=False, indent=indent) + "\n").encode())


def file_state(path: Path) -> dict[str, Any]:
    """What tells a changed input from the one that an unfinished run read, without reading it."""
    stat = path.stat()
    return {"path": str(path), "size": stat.st_size, "modified_ns": stat.st_mtime_ns}
