"""A GGUF file: its metadata and where each tensor lies; values are dequantized some rows at a time.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.  The header is read here, since every count in it can be held to the size of
the file before work is done for it; what the quantized blocks mean is the knowledge of the package `gguf`.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_BLOCK_BYTES = 32 << 20
_MAX_DIMENSIONS = 4

# Type of a metadata value -> how it is packed.
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MIN_STRING_BYTES = 8


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor of the file.

    Attributes:
        shape: rows first, as torch has it; the file has it the other way round.
        kind: ggml's name of the type, such as `Q4_1`.
        offset: of its first byte in the file.
        path: of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int
    path: Path

    @property
    def num_values(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class GGUFFile:
    """The header of a file, or of all parts of one.

    Attributes:
        paths: of the parts, the first of which has the metadata.
        metadata: key -> number, text, or list of these.
        tensors: name -> tensor.
    """

    paths: tuple[Path, ...]
    metadata: dict[str, Any]
    tensors: dict[str, QuantizedTensor]

    @property
    def path(self) -> Path:
        """What errors call it."""
        return self.paths[0]

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Read the header, and those of the other parts if the file is one of several.

        Raises:
            ValueError: if a file is none of the format, is cut, contradicts itself, or has tensors of a type that cannot be dequantized; if a
                part is missing.
        """
        metadata, tensors = _read(path)
        if metadata.get("split.count", 1) in (0, 1):  # 0 is what llama.cpp writes where it has merged parts
            return cls((path,), metadata, _refuse_unreadable(tensors, path))
        paths = _parts(path, metadata["split.count"])
        found = [_read(part) for part in paths]
        for number, (part, (its, _)) in enumerate(zip(paths, found)):
            if (its.get("split.no"), its.get("split.count")) != (number, len(paths)):
                raise ValueError(
                    f"{part} says that it is part {its.get('split.no')} (from 0) of {its.get('split.count')}; expected {number} of {len(paths)}"
                )
        tensors = [tensor for _, its in found for tensor in its]
        metadata = found[0][0]
        if (listed := metadata.get("split.tensors.count", len(tensors))) != len(tensors):
            raise ValueError(f"{paths[0]} and its other parts have {len(tensors)} tensors; expected {listed}; copy or download them again")
        return cls(tuple(paths), metadata, _refuse_unreadable(tensors, paths[0]))

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[np.ndarray[Any, Any]]:
        """The values of a tensor in order, or of its rows from one to before another, as float32 blocks of (rows, columns), or one block of (columns,).

        Args:
            start: of the rows that all axes but the last make.
        """
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        num_rows = math.prod(tensor.shape[:-1])
        row_bytes = tensor.nbytes // num_rows
        step = max(1, _BLOCK_BYTES // (4 * tensor.shape[-1]))
        with open(tensor.path, "rb") as stream:
            end = num_rows if stop is None else stop
            for first in range(start, end, step):
                count = min(step, end - first)
                stream.seek(tensor.offset + first * row_bytes)
                data = np.frombuffer(stream.read(count * row_bytes), np.uint8).reshape(count, row_bytes)
                values = np.asarray(
                    _plain(data, tensor.kind) if tensor.kind in _PLAIN else dequantize(data, GGMLQuantizationType[tensor.kind])
                )
                yield values.astype(np.float32, copy=False).reshape(*((count,) if len(tensor.shape) > 1 else ()), tensor.shape[-1])


def _read(path: Path) -> tuple[dict[str, Any], list[QuantizedTensor]]:
    """Metadata and tensors of one file."""
    if not path.is_file():
        raise ValueError(f"{path} is no file; expected one .gguf file")
    with open(path, "rb") as stream:
        start = stream.read(len(MAGIC) + 4)
        if start[: len(MAGIC)] != MAGIC:
            raise ValueError(f"{path} is no GGUF file: it begins with {start[:4]!r} instead of {MAGIC!r}")
        version = int.from_bytes(start[len(MAGIC) :], "little")
        if version not in VERSIONS:
            raise ValueError(f"{path} is GGUF of version {version}; expected {' or '.join(map(str, VERSIONS))}, little-endian")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read_header(_Cursor(data, len(start)), path)
            except (ValueError, struct.error, UnicodeDecodeError) as error:
                raise ValueError(f"{path} is corrupt or truncated ({error}); copy or download it again") from error


def _parts(path: Path, count: Any) -> list[Path]:
    """The files of all parts, by the name of one of them.

    Raises:
        ValueError: naming a part that is missing.
    """
    named = _PART_NAME.fullmatch(path.name)
    if not isinstance(count, int) or named is None or int(named[2]) != count:
        raise ValueError(f"{path} is one of {count} parts; expected them beside each other, named NAME-00001-of-{count:05}.gguf and so on")
    paths = [path.with_name(f"{named[1]}-{number:05}-of-{named[2]}.gguf") for number in range(1, count + 1)]
    if missing := [part.name for part in paths if not part.is_file()]:
        raise ValueError(f"{path} is one of {count} parts, and {', '.join(missing[:5])} is not beside it; copy or download all parts")
    return paths


_PART_NAME = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")
_PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64}


def _plain(data: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    return data.view(_PLAIN[kind])


class _Cursor:
    """A place in the header that never runs past the end of the file."""

    def __init__(self, data: mmap.mmap, place: int) -> None:
        self.data = data
        self.place = place

    def take(self, length: int) -> bytes:
        self.require(length)
        self.place += length
        return self.data[self.place - length : self.place]

    def require(self, length: int) -> None:
        if length > len(self.data) - self.place:
            raise ValueError(f"byte {self.place} asks for {length} bytes more, the file has {len(self.data)}")

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind != _ARRAY:
            raise ValueError(f"byte {self.place - 4} names the unknown type {kind}")
        kind, length = self.number("<I"), self.number("<Q")
        if kind in _NUMBERS:
            form = _NUMBERS[kind]
            return list(struct.unpack(f"<{length}{form[1]}", self.take(length * struct.calcsize(form))))
        if kind != _STRING:
            raise ValueError(f"byte {self.place - 12} names a list of the unknown type {kind}")
        self.require(length * _MIN_STRING_BYTES)
        return [self.text() for _ in range(length)]


def _read_header(cursor: _Cursor, path: Path) -> tuple[dict[str, Any], list[QuantizedTensor]]:
    num_tensors, num_keys = cursor.number("<Q"), cursor.number("<Q")
    cursor.require(num_keys * _MIN_STRING_BYTES + num_tensors * _MIN_STRING_BYTES)
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.text()
        if key in metadata:
            raise ValueError(f"it has {key} twice")
        metadata[key] = cursor.value(cursor.number("<I"))
    described = [_read_description(cursor, path) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"it is aligned to {alignment!r}; expected a power of two")
    begin = -(-cursor.place // alignment) * alignment
    return metadata, [_place(tensor, begin, len(cursor.data)) for tensor in described]


def _read_description(cursor: _Cursor, path: Path) -> QuantizedTensor:
    from gguf import GGMLQuantizationType

    name, num_dimensions = cursor.text(), cursor.number("<I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"{name} has {num_dimensions} dimensions")
    shape = tuple(reversed([cursor.number("<Q") for _ in range(num_dimensions)]))
    number, offset = cursor.number("<I"), cursor.number("<Q")
    kinds = {int(kind): kind.name for kind in GGMLQuantizationType}
    if number not in kinds:
        raise ValueError(f"{name} has the unknown type {number}")
    return QuantizedTensor(name, shape, kinds[number], offset, 0, path)


def _place(tensor: QuantizedTensor, begin: int, file_bytes: int) -> QuantizedTensor:
    """A tensor with its place in the file, held to its size."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    block_values, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[tensor.kind]]
    if not tensor.num_values or tensor.shape[-1] % block_values:
        raise ValueError(f"{tensor.name} has the shape {tensor.shape}; rows of {tensor.kind} are of {block_values} values or a multiple")
    nbytes = tensor.num_values // block_values * block_bytes
    if begin + tensor.offset + nbytes > file_bytes:
        raise ValueError(f"{tensor.name} ends {begin + tensor.offset + nbytes - file_bytes} bytes behind the end of the file")
    return replace(tensor, offset=begin + tensor.offset, nbytes=nbytes)


def _refuse_unreadable(tensors: list[QuantizedTensor], path: Path) -> dict[str, QuantizedTensor]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    readable: dict[str, bool] = {}
    for tensor in tensors:
        if tensor.kind not in readable:
            try:
                readable[tensor.kind] = (
                    tensor.kind in _PLAIN or dequantize(np.zeros((1, 0), np.uint8), GGMLQuantizationType[tensor.kind]) is not None
                )
            except NotImplementedError:
                readable[tensor.kind] = False
            except (ValueError, IndexError):  # it knows the type, and finds nothing in no block
                readable[tensor.kind] = True
    if unknown := [f"{tensor.name} ({tensor.kind})" for tensor in tensors if not readable[tensor.kind]]:
        raise ValueError(
            f"{path} has {len(unknown)} tensors of types that cannot be dequantized, such as {', '.join(unknown[:3])}; take a file of another"
            " quantization, such as Q8_0 or F16"
        )
    found = {tensor.name: tensor for tensor in tensors}
    if len(found) < len(tensors):
        raise ValueError(f"{path} names a tensor twice; copy or download it again")
    return found
