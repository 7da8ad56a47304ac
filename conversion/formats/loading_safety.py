"""Distributed checkpoints as data alone: how torch and Megatron are made to read them so, and which hold something else.

Torch's own reader runs what the index and the objects of a checkpoint say, and TransformerEngine unpickles the bytes that such an object
is.  `read_as_data` takes that reader away.  `require_safe` names, before anything is read, what another program would run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from conversion.formats.dist_metadata import COMMON_NAME, FLATTENED, METADATA_NAME, DistMetadata, Place, read_dist_metadata
from conversion.formats.inert_pickle import load_inert
from conversion.formats.pickle_names import STATE, refusal, unknown_names
from conversion.formats.torch_file import TorchFile, read_torch_file, stored_tensor

_EXTRA_STATE = "_extra_state"  # what TransformerEngine unpickles again, where it is a tensor of bytes


def read_as_data() -> None:
    """Have torch, in this process from now on, read distributed checkpoints without running anything.

    The index is read by `read_dist_metadata` and made anew of torch's classes; objects are loaded by `weights_only`, as tensors are.
    """
    from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader

    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)  # by which `common.pt` would be run
    FileSystemReader.read_metadata = _read_metadata  # type: ignore[assignment, method-assign]
    DefaultLoadPlanner.load_bytes = _load_bytes  # type: ignore[assignment, method-assign]


def _load_bytes(planner: Any, item: Any, stream: IO[bytes]) -> None:
    import torch

    value = torch.load(stream, map_location="cpu", weights_only=True)
    if planner.flatten_state_dict:
        from torch.distributed.checkpoint._nested_dict import set_element

        set_element(planner.original_state_dict, planner.mappings[item.dest_index.fqn], value)
    else:
        planner.state_dict[item.dest_index.fqn] = value


def _read_metadata(reader: Any, **_: Any) -> Any:
    path = Path(reader.path)
    return _torch_metadata(path, (path / METADATA_NAME).stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)  # every load asks for it twice
def _torch_metadata(path: Path, changed_ns: int) -> Any:
    """The index as torch's own class, with Megatron's shapes of what it has flattened."""
    import torch
    from torch.distributed.checkpoint import metadata as torch_metadata
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    read = read_dist_metadata(path)
    described: dict[str, Any] = {key: torch_metadata.BytesStorageMetadata() for key in read.objects}
    places = {
        torch_metadata.MetadataIndex(key): _StorageInfo(place.file, place.offset, place.length) for key, place in read.objects.items()
    }
    for entry in read.entries:
        chunks = []
        for chunk in entry.chunks:
            offsets, place = torch.Size(chunk.offsets), chunk.place
            chunks.append(torch_metadata.ChunkStorageMetadata(offsets, torch.Size(chunk.sizes)))
            places[torch_metadata.MetadataIndex(entry.key, offsets)] = _StorageInfo(place.file, place.offset, place.length)
        properties = torch_metadata.TensorProperties(dtype=getattr(torch, entry.dtype))
        described[entry.key] = torch_metadata.TensorStorageMetadata(properties, torch.Size(entry.shape), chunks)
    made = torch_metadata.Metadata(described, storage_data=places, storage_meta=torch_metadata.StorageMeta())
    made.mcore_data = {key: {FLATTENED: shape} for key, shape in read.flattened.items()}  # type: ignore[attr-defined]
    return made


def require_safe(weights: Path) -> None:
    """Refuse a folder of which any part would run something, or cannot be looked at.

    Raises:
        ValueError: naming the file and what it would run.
    """
    problems = unsafe_parts(read_dist_metadata(weights))
    if not (weights / COMMON_NAME).is_file():
        problems.append(f"{weights / COMMON_NAME} is missing: the checkpoint is not complete")
    if problems:
        raise ValueError("; ".join(problems))


def unsafe_parts(metadata: DistMetadata) -> list[str]:
    """A sentence for each file of which an object, or that itself, would run something or cannot be looked at.

    A file that is missing or too short is no matter of safety.
    """
    problems = []
    common = metadata.directory / COMMON_NAME
    if common.is_file():
        problems += _problem(common, Place(COMMON_NAME, 0, common.stat().st_size), keys=())
    keys: dict[Place, list[str]] = {}
    for key, place in metadata.objects.items():
        keys.setdefault(place, []).append(key)
    for place, names in keys.items():
        path = metadata.directory / place.file
        if path.is_file() and path.stat().st_size >= place.offset + place.length:
            problems += _problem(path, place, keys=names)
    return list(dict.fromkeys(problems))


def _problem(path: Path, place: Place, *, keys: Iterable[str]) -> list[str]:
    try:
        file = read_torch_file(path, start=place.offset, length=place.length)
        if file is None:
            raise ValueError(f"{path} is corrupt; copy the checkpoint again")
        names = [*file.names, *(_names_in_bytes(file) if any(_EXTRA_STATE in key for key in keys) else ())]
    except ValueError as error:
        return [str(error)]
    return [refusal(path, unknown)] if (unknown := unknown_names(names, STATE)) else []


def _names_in_bytes(file: TorchFile) -> list[str]:
    """The names in the pickle that an object is, where it is a tensor of bytes.

    Raises:
        ValueError: if it is another tensor, or corrupt.
    """
    tensor = stored_tensor(file.content)
    if tensor is None or 0 in tensor.shape:
        return []
    begin, size = file.storage(tensor.storage)
    if tensor.dtype != "uint8" or len(tensor.shape) != 1 or not tensor.is_contiguous or tensor.end > size:
        raise ValueError(f"{file.path} holds a state that is not a sequence of bytes; copy the checkpoint again")
    with open(file.path, "rb") as stream:
        stream.seek(begin + tensor.offset)
        content = stream.read(tensor.shape[0])
    try:
        return load_inert(content).names
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise ValueError(f"{file.path} is corrupt ({error!r}); copy the checkpoint again") from error
