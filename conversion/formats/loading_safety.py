"""Whether a distributed checkpoint holds data alone, so that it may be given to Megatron and torch.

Both run what some of its files say: torch unpickles every object of the checkpoint, and TransformerEngine unpickles the bytes that
such an object is.  `read_dist_metadata` refuses an index that names anything but data; here are the objects and what is not
sharded.  Tensors, those of the optimizer among them, are read by torch in the way that runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conversion.formats.dist_metadata import COMMON_NAME, DistMetadata, Place, read_dist_metadata
from conversion.formats.inert_pickle import load_inert
from conversion.formats.pickle_names import STATE, refusal, unknown_names
from conversion.formats.torch_zip import TorchFile, read_torch_file, stored_tensor

_EXTRA_STATE = "_extra_state"  # what TransformerEngine unpickles again, where it is a tensor of bytes


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
        raise ValueError(f"{file.path} holds a state that is no row of bytes; copy the checkpoint again")
    with open(file.path, "rb") as stream:
        stream.seek(begin + tensor.offset)
        content = stream.read(tensor.shape[0])
    try:
        return load_inert(content).names
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise ValueError(f"{file.path} is corrupt ({error!r}); copy the checkpoint again") from error
