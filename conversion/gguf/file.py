"""A GGUF file: its metadata and where each tensor lies; values are dequantized some rows at a time.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, as the package `gguf` reads it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUF_MAGIC, GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

VERSIONS = (2, 3)
_MAGIC = GGUF_MAGIC.to_bytes(4, "little")
_BLOCK_BYTES = 1 << 20
_MAX_DIMENSIONS = 4


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
        tensor = self.tensors[name]
        num_rows = math.prod(tensor.shape[:-1])
        row_bytes = tensor.nbytes // num_rows
        step = max(1, _BLOCK_BYTES // (4 * tensor.shape[-1]))
        with open(tensor.path, "rb") as stream:
            end = num_rows if stop is None else stop
            for first in range(start, end, step):
                count = min(step, end - first)
                stream.seek(tensor.offset + first * row_bytes)
                data = np.frombuffer(stream.read(count * row_bytes), np.uint8)
                yield _dequantized(data, tensor.kind).reshape(*((count,) if len(tensor.shape) > 1 else ()), tensor.shape[-1])


class _Reader(GGUFReader):
    """The package's reader, which never runs past the end of the file: it would else go on there for as long as a count in it says."""

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.data, dtype, int(count), offset)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        """As the package's, but an array is not taken apart number by number."""
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        head = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
        (kind,), (count,) = head
        start = orig_offs + 12
        if number := self.gguf_scalar_to_np.get(GGUFValueType(kind)):
            parts, end = [self._get(start, number, count)], start + int(count) * np.dtype(number).itemsize
        elif kind == GGUFValueType.STRING:
            parts, end = [], start
            for _ in range(int(count)):
                parts.append(self._get(end + 8, np.uint8, self._get(end, np.uint64)[0]))
                end += 8 + len(parts[-1])
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        return end - orig_offs, [*head, *parts], list(range(2, 2 + len(parts))), [GGUFValueType.ARRAY, GGUFValueType(kind)]


def _read(path: Path) -> tuple[dict[str, Any], list[QuantizedTensor]]:
    """Metadata and tensors of one file."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file; expected one .gguf file")
    with open(path, "rb") as stream:
        magic, version = stream.read(4), int.from_bytes(stream.read(4), "little")
    if magic != _MAGIC:
        raise ValueError(f"{path} is not a GGUF file: it begins with {magic!r} instead of {_MAGIC!r}")
    if version not in VERSIONS:
        raise ValueError(f"{path} is GGUF of version {version}; expected {' or '.join(map(str, VERSIONS))}, little-endian")
    try:
        reader = _Reader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        return metadata, [_tensor(tensor, path) for tensor in reader.tensors]
    except (ValueError, KeyError, OverflowError, RecursionError, ZeroDivisionError) as error:
        raise ValueError(f"{path} is corrupt or truncated ({error}); copy or download it again") from error


def _tensor(tensor: Any, path: Path) -> QuantizedTensor:
    shape = tuple(reversed(tensor.shape.tolist()))
    if not 1 <= len(shape) <= _MAX_DIMENSIONS or not math.prod(shape) or math.prod(shape) != tensor.n_elements:
        raise ValueError(f"{tensor.name} has the shape {shape}")
    return QuantizedTensor(tensor.name, shape, tensor.tensor_type.name, int(tensor.data_offset), int(tensor.n_bytes), path)


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


def _dequantized(data: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """Bytes as float32 (1, number of values): in one row, because the package would take sixteen rows at a time."""
    row = data.reshape(1, -1)
    values = row.view(np.float64) if kind == "F64" else np.asarray(dequantize(row, GGMLQuantizationType[kind]))
    return values.astype(np.float32, copy=False)


@cache
def _can_be_dequantized(kind: str) -> bool:
    try:
        _dequantized(np.zeros(GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1], np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _refuse_unreadable(tensors: list[QuantizedTensor], path: Path) -> dict[str, QuantizedTensor]:
    if unknown := [f"{tensor.name} ({tensor.kind})" for tensor in tensors if not _can_be_dequantized(tensor.kind)]:
        raise ValueError(
            f"{path} has {len(unknown)} tensors of types that cannot be dequantized, such as {', '.join(unknown[:3])}; take a file of another"
            " quantization, such as Q8_0 or F16"
        )
    found = {tensor.name: tensor for tensor in tensors}
    if len(found) < len(tensors):
        raise ValueError(f"{path} names a tensor twice; copy or download it again")
    return found
