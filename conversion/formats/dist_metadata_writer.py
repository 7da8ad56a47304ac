"""The index of a distributed checkpoint (`dist_metadata`), written without torch: the objects of its classes, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.artifacts import DigestingWriter
from conversion.formats.dist_metadata import METADATA_NAME, Entry, Place
from conversion.formats.plain_pickle import Call, Global, Instance, Items, dump

_METADATA = "torch.distributed.checkpoint.metadata"
_STORAGE_INFO = Global("torch.distributed.checkpoint.filesystem", "_StorageInfo")
_VERSION = "1.0.0"  # of the format, as torch writes it


def write_dist_metadata(directory: Path, entries: Sequence[Entry], objects: Mapping[str, Place]) -> str:
    """Write `.metadata`, which torch and Megatron read, and return its digest."""
    described: dict[str, Instance] = {}
    storage: list[tuple[Instance, Instance]] = []
    for entry in entries:
        described[entry.key] = _object(
            "TensorStorageMetadata", properties=_properties(entry.dtype), size=_size(entry.shape), chunks=_chunks(entry)
        )
        storage += [(_index(entry.key, chunk.offsets), _stored(chunk.place)) for chunk in entry.chunks]
    for key, place in objects.items():
        described[key] = Instance(Global(_METADATA, "BytesStorageMetadata"))
        storage.append((_index(key, None), _stored(place)))
    metadata = _object(
        "Metadata", state_dict_metadata=described, planner_data={}, storage_data=Items(storage), storage_meta=None, version=_VERSION
    )
    with DigestingWriter(directory / METADATA_NAME) as stream:
        stream.write(dump(metadata))
        return stream.digest


def _object(kind: str, **fields: Any) -> Instance:
    return Instance(Global(_METADATA, kind), fields)


def _properties(dtype: str) -> Instance:
    """What torch says of an ordinary tensor on the CPU: dtype, layout, gradient, memory format, pinned."""
    layout = Call(Global("torch.serialization", "_get_layout"), ("torch.strided",))
    memory_format = Call(Global(_METADATA, "_MEM_FORMAT_ENCODING"), (0,))
    return Instance(Global(_METADATA, "TensorProperties"), (Global("torch", dtype), layout, False, memory_format, False))


def _chunks(entry: Entry) -> list[Instance]:
    return [_object("ChunkStorageMetadata", offsets=_size(chunk.offsets), sizes=_size(chunk.sizes)) for chunk in entry.chunks]


def _index(key: str, offsets: tuple[int, ...] | None) -> Instance:
    return _object("MetadataIndex", fqn=key, offset=None if offsets is None else _size(offsets), index=None)


def _stored(place: Place) -> Instance:
    return Instance(_STORAGE_INFO, {"relative_path": place.file, "offset": place.offset, "length": place.length})


def _size(numbers: tuple[int, ...]) -> Call:
    return Call(Global("torch", "Size"), (numbers,))
