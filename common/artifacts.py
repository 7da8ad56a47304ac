"""One stage's output: written aside, renamed when complete, with the manifest that the next stage checks.

Every output is a directory.  It is written under a hidden name beside its final place and renamed at the end, so
a directory with the final name is always complete.  `scion.json` in it is the manifest: what made it, from what,
and size and digest of each file.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

from common import VERSION
from common.plain_files import read_json
from common.process_identity import ProcessIdentity
from common.system_errors import shown_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

MANIFEST_NAME = "scion.json"
MANIFEST_FORMAT = 1
_CHUNK_BYTES = 1 << 20
_READERS = 4
_MAX_NAME_BYTES = 255
_WRITE_BYTES = 128 << 10
_RECORDED_PACKAGES = ("torch", "transformers", "tokenizers", "sentencepiece", "nemo-toolkit", "megatron-core", "gensim", "lm_eval")


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and content digest of one file; the digest is None where the writer of the file did not make one."""

    size: int
    digest: str | None


@dataclass(frozen=True)
class Manifest:
    """What travels beside an output.

    Attributes:
        stage: the module that wrote it, for example `conversion.transfer`.
        facts: what the next stage must know: tokenizer digest, real and padded vocabulary size, tie state, method, seed ...
        arguments: the arguments of the command.
        inputs: name of each input -> its digest (`Manifest.digest` where it had a manifest, else that of its files).
        files: path relative to the directory -> size and digest.
        versions: Python and the packages that matter.
        commit: commit of this project, with `-dirty` appended when it was edited; None outside a git checkout.
    """

    stage: str
    facts: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    files: dict[str, FileRecord] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None

    @property
    def digest(self) -> str:
        """Digest of the content: equal for equal files, whatever the arguments, the time or the place."""
        return combined_digest({name: record.digest or str(record.size) for name, record in self.files.items()})


def digest_bytes(data: bytes) -> str:
    """xxh3-128 of the bytes.  It finds edits and truncation at 10 GB/s; it is not a signature against an attacker."""
    return f"xxh3:{xxhash.xxh3_128_hexdigest(data)}"


def digest_pieces(pieces: Iterable[bytes]) -> str:
    """The same of bytes that come one behind the other."""
    state = xxhash.xxh3_128()
    for piece in pieces:
        state.update(piece)
    return f"xxh3:{state.hexdigest()}"


def digest_file(path: Path) -> str:
    """xxh3-128 of a file's content, read in pieces."""
    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_CHUNK_BYTES))  # one for the whole file: new memory costs more than hashing it
    with open(path, "rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            state.update(buffer[:count])
    return f"xxh3:{state.hexdigest()}"


class DigestingWriter:
    """A new binary file that knows the digest of what was written to it, so that it need not be read again."""

    def __init__(self, path: Path) -> None:
        self._stream = open(path, "wb", buffering=0)  # noqa: SIM115 closed by __exit__
        self._state = xxhash.xxh3_128()
        self.size = 0

    @property
    def digest(self) -> str:
        """Digest of all bytes so far; equal to `digest_file` of the closed file."""
        return f"xxh3:{self._state.hexdigest()}"

    def write(self, data: Buffer) -> int:
        """Write all of the data; returns its number of bytes.

        In pieces that are still in the processor's cache when they are written after hashing; longer ones are no faster
        anywhere, and twice as slow where the kernel answers them with huge pages that it must get from a host.
        """
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _WRITE_BYTES):
            piece = view[start : start + _WRITE_BYTES]
            self._state.update(piece)
            written = 0
            while written < len(piece):
                written += self._stream.write(piece[written:])
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing waits in a buffer; here because `torch.save` asks for it."""

    def __enter__(self) -> DigestingWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()


def combined_digest(digests: Mapping[str, str]) -> str:
    """Digest of named digests, independent of their order."""
    return digest_bytes(json.dumps(sorted(digests.items())).encode())


def digest_files(directory: Path, names: Iterable[str]) -> str:
    """Digest of the named files of a directory: the identity of an input that has no manifest."""
    return combined_digest({name: digest_file(directory / name) for name in names})


def free_output(output_dir: Path, required_bytes: int = 0) -> Path:
    """The absolute path of a directory that may be written; its parent is made.

    Raises:
        ValueError: if it exists and is not empty, cannot be made where it is to be, or if the file system has not enough free space.
    """
    output_dir = Path(os.path.abspath(output_dir))
    _require_place(output_dir)
    if output_dir.is_symlink() or (output_dir.exists() and not output_dir.is_dir()):
        raise ValueError(f"the output {output_dir} exists and is not a directory; choose another --output")
    if output_dir.is_dir() and any(output_dir.iterdir()):
        raise ValueError(f"the output directory {output_dir} exists and is not empty; remove it or choose another --output")
    make_place(output_dir, output_dir.parent)
    require_free_space(output_dir.parent, required_bytes)
    return output_dir


def make_place(output_dir: Path, directory: Path) -> None:
    """Make a directory that an output needs, if it is not there.

    Raises:
        ValueError: naming the output, if the system refuses.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the output {output_dir} cannot be created: {directory}: {error.strerror}; choose another --output") from error


def _require_place(output_dir: Path) -> None:
    """Refuse a place where no directory can be, before any work is done for it."""
    beside = _partial_name(output_dir)
    if (too_many := len(os.fsencode(beside)) - _MAX_NAME_BYTES) > 0:
        raise ValueError(
            f"the name of the output {shown_name(output_dir)} is {too_many} bytes too long, as a temporary directory gets a longer name;"
            " choose a shorter --output"
        )
    there = next(path for path in output_dir.parents if os.path.lexists(path))
    if not there.is_dir():
        raise ValueError(f"the output {output_dir} would be inside {there}, which is not a directory; choose another --output")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(
            f"the output {output_dir} cannot be created: {there} is not writable for this user or is on a read-only file system;"
            " choose another --output"
        )


def _partial_name(output_dir: Path) -> str:
    return f".{output_dir.name}.partial-{ProcessIdentity.own().label}_{uuid.uuid4().hex[:4]}"


@contextmanager
def partial_directory(output_dir: Path) -> Iterator[Path]:
    """A fresh hidden directory beside `output_dir`, which vanishes when the block ends unless it was renamed.

    Its name says which process writes it: what killed ones left of the same output is removed before.  Left of another machine's, which may
    still be at work, or under a name of another form, it stays, and stderr says so.
    """
    for left in output_dir.parent.glob(f".{glob.escape(output_dir.name)}.partial-*"):
        writer = ProcessIdentity.from_label(left.name.rpartition(".partial-")[2].rpartition("_")[0])
        if writer is not None and writer.is_gone:
            shutil.rmtree(left, ignore_errors=True)
        elif writer is None or not writer.is_here:
            print(f"note: {left} is of {writer or 'an unknown process'}; remove it if that process has ended", file=sys.stderr)
    staging = output_dir.parent / _partial_name(output_dir)
    make_place(output_dir, staging)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def staged_directory(output_dir: Path, *, required_bytes: int = 0) -> Iterator[Path]:
    """A fresh directory that becomes `output_dir` when the block ends without an error, and vanishes otherwise.

    All of it is readable by the group whatever the umask, as colleagues of a project share results, and by others as the umask says.
    What killed runs left of the same output is removed, see `partial_directory`.

    Args:
        required_bytes: free space to ask for before anything is written.

    Raises:
        ValueError: if `output_dir` exists and is not empty, cannot be made, or if the file system has not enough free space.
    """
    output_dir = free_output(output_dir, required_bytes)
    try:
        with partial_directory(output_dir) as staging:
            yield staging
            make_group_readable(staging)
            sync_tree(staging)
            if output_dir.is_dir():
                output_dir.rmdir()
            os.replace(staging, output_dir)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ValueError(f"the output directory {output_dir} is no longer empty: another process wrote into it") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"the disk is full while writing {output_dir}: {error}; nothing was kept; free some space or choose another --output"
            ) from error
        raise


@contextmanager
def written_aside(path: Path) -> Iterator[BinaryIO]:
    """A new binary file that gets its name when the block ends without an error, so that a killed run leaves none that is cut.

    Until then it is hidden and ends in `.partial`.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def require_free_space(directory: Path, required_bytes: int) -> None:
    """Refuse early what would fill the disk.

    Raises:
        ValueError: if the file system of `directory` has fewer free bytes than required.
    """
    free = shutil.disk_usage(directory).free
    if free < required_bytes:
        raise ValueError(
            f"{directory} has {free / 2**30:.2f} GiB free, but the output needs about {required_bytes / 2**30:.2f} GiB;"
            " free some space or choose another --output"
        )


def make_group_readable(directory: Path) -> None:
    """Give the group read access to all below a directory, and others what they have to the directory itself, by the umask.

    Megatron and safetensors may write files that only their owner can read.
    """
    others = os.stat(directory).st_mode & 0o005
    for root, _, names in os.walk(directory):
        os.chmod(root, os.stat(root).st_mode | 0o750 | others)
        for name in names:
            path = os.path.join(root, name)
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode | 0o640 | (others & 0o004))


def sync_tree(directory: Path) -> None:
    """Flush file contents to disk before the rename makes them look complete."""
    for root, _, names in os.walk(directory):
        for name in names:
            descriptor = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def write_manifest(
    directory: Path,
    *,
    stage: str,
    facts: Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    known_digests: Mapping[str, str] | None = None,
    hash_files: bool = True,
) -> Manifest:
    """Write `scion.json` over all files of a directory and return what it says.

    Args:
        known_digests: digests computed while writing, so that large files are not read again.
        hash_files: False records sizes only.
    """
    known_digests = known_digests or {}
    files = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and p != directory / MANIFEST_NAME):
        name = path.relative_to(directory).as_posix()
        digest = known_digests.get(name) or (digest_file(path) if hash_files else None)
        files[name] = FileRecord(path.stat().st_size, digest)
    manifest = Manifest(
        stage=stage,
        facts=dict(facts),
        arguments={key: jsonable(value) for key, value in (arguments or {}).items()},
        inputs=dict(inputs or {}),
        files=files,
        versions=dict(_versions()),
        commit=project_commit(),
    )
    text = json.dumps({"format": MANIFEST_FORMAT, **asdict(manifest)}, indent=2, ensure_ascii=False, sort_keys=True)
    partial = directory / f".{MANIFEST_NAME}.partial"
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, directory / MANIFEST_NAME)
    return manifest


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a directory, or None where there is none (a folder that this project did not write).

    Raises:
        ValueError: if it cannot be read or is of another format.
    """
    path = directory / MANIFEST_NAME
    if not path.exists():
        return None
    try:
        content = read_json(path)
        found = content.pop("format")
        if found != MANIFEST_FORMAT:
            raise ValueError(f"format {found}")
        content["files"] = {name: FileRecord(**record) for name, record in content["files"].items()}
        manifest = Manifest(**content)
        _require_types(manifest)
        return manifest
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a manifest of format {MANIFEST_FORMAT} ({error}); make the folder again") from error


def _require_types(manifest: Manifest) -> None:
    """Refuse what no command writes, so that those who read a manifest need not ask what its parts are."""
    for name in ("facts", "arguments", "inputs", "versions"):
        if not isinstance(getattr(manifest, name), dict):
            raise ValueError(f"its {name} are {json.dumps(getattr(manifest, name))[:40]}; expected names and values")
    for name, kinds in (("stage", str), ("commit", str | None)):
        if not isinstance(getattr(manifest, name), kinds):
            raise ValueError(f"its {name} is {json.dumps(getattr(manifest, name))[:40]}; expected text")
    for name, digest in (*manifest.inputs.items(), *manifest.versions.items()):
        if not isinstance(digest, str):
            raise ValueError(f"it has {json.dumps(digest)[:40]} for {name}; expected text")
    for name, record in manifest.files.items():
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise ValueError(f"it lists {shown_name(name)}, which does not lie in its folder")
        if type(record.size) is not int or record.size < 0 or not isinstance(record.digest, str | None):
            raise ValueError(f"it lists {name} with {json.dumps(asdict(record))[:80]}; expected a size and a digest")


def require_manifest(directory: Path, *, stages: Iterable[str], made_by: str) -> Manifest:
    """The manifest of a directory that must come from one of the given stages.

    Args:
        made_by: the command to name in the error, for example `python -m data_prep.to_megatron`.
    """
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; make it with `{made_by}`")
    manifest = read_manifest(directory)
    if manifest is None:
        raise ValueError(f"{directory} has no {MANIFEST_NAME}; make it with `{made_by}`")
    if manifest.stage not in set(stages):
        raise ValueError(f"{directory} was written by {manifest.stage}; expected the output of `{made_by}`")
    return manifest


def check_files(directory: Path, manifest: Manifest, *, contents: bool = True, share: tuple[int, int] = (0, 1)) -> None:
    """Refuse files that are not as their manifest says.

    Args:
        contents: also compare digests, which reads every file once, several at a time.
        share: number of this process, and of all that read together: the files are spread over them by size.

    Raises:
        ValueError: naming the first file that is missing, of another size, or edited.
    """
    for sentence in wrong_sizes(directory, manifest):
        raise ValueError(sentence)
    if not contents:
        return
    for sentence in edited(directory, manifest, share=share):
        raise ValueError(sentence)


def wrong_sizes(directory: Path, manifest: Manifest) -> Iterator[str]:
    """A sentence for each file that is missing or of another size than its manifest says."""
    for name, record in manifest.files.items():
        path = directory / name
        if not path.is_file():
            yield f"{path} is missing; its manifest lists it with {record.size} bytes; make {directory} again"
        elif (size := path.stat().st_size) != record.size:
            yield f"{path} has {size} bytes, but its manifest says {record.size}: truncated or edited; make {directory} again"


def edited(directory: Path, manifest: Manifest, *, share: tuple[int, int] = (0, 1)) -> Iterator[str]:
    """A sentence for each file whose digest is not that of its manifest; see `check_files` for the arguments."""
    mine = _share(manifest, *share)
    recorded = {directory / name: record.digest for name, record in manifest.files.items() if record.digest is not None and name in mine}
    with ThreadPoolExecutor(_READERS) as readers:  # xxhash lets go of the interpreter, and shared file systems serve several streams
        for path, digest in zip(recorded, readers.map(digest_file, recorded)):
            if digest != recorded[path]:
                yield f"{path} was edited after {manifest.stage} wrote it: its digest is not that of its manifest; make {directory} again"


def _share(manifest: Manifest, number: int, processes: int) -> set[str]:
    """Names of the files that one of several processes reads: the largest first, each to whom has the fewest bytes so far."""
    loads, names = [0] * processes, [set[str]() for _ in range(processes)]
    # Where to begin differs between directories, as each may have one large file.
    first = xxhash.xxh3_64_intdigest("".join(sorted(manifest.files)).encode()) % processes
    for name, record in sorted(manifest.files.items(), key=lambda item: (-item[1].size, item[0])):
        lightest = min(range(processes), key=lambda process: (loads[process], (process - first) % processes))
        loads[lightest] += record.size
        names[lightest].add(name)
    return names[number]


def require_same_tokenizer(found: str | None, expected: str | None, *, found_in: str, expected_by: str) -> None:
    """Refuse two stages that speak of different tokenizers."""
    if found is not None and expected is not None and found != expected:
        raise ValueError(
            f"{found_in} uses tokenizer {found}, but {expected_by} uses tokenizer {expected}; make both with the same tokenizer"
        )


@cache
def _versions() -> dict[str, str]:
    from importlib import metadata  # takes 10 ms, for its e-mail parser

    versions = {"scion": VERSION, "python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = _version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _version(package: str) -> str:
    """What `metadata.version` gives, without reading the whole description as if it were an e-mail, which takes as long as importing numpy.

    Raises:
        PackageNotFoundError: if it is not installed.
    """
    from importlib import metadata

    text = metadata.distribution(package).read_text("METADATA") or ""
    found = re.match(r"(?:\S.*\n)*?Version: *(\S+)", text)
    return found[1] if found else metadata.version(package)


@cache
def project_commit() -> str | None:
    """Commit of this checkout when the process first asked, with `-dirty` appended when it was edited; None outside a git checkout."""
    checkout = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def jsonable(value: Any) -> Any:
    """An argument of a command as its manifest says it."""
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value if isinstance(value, str | int | float | bool | dict | None) else str(value)
