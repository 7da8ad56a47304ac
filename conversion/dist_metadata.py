"""What lies where in Megatron's distributed checkpoint format (`torch_dist`), found without torch, Megatron or reading a tensor.

It is a folder of torch's distributed checkpoint package: `.metadata` is a pickle that says for each tensor which chunks make it
up and where each lies; `__0_0.distcp` and others hold the chunks, each as `torch.save` writes it.  Megatron adds
`metadata.json` (the format's name) and `common.pt` (what is not sharded).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conversion.dtypes import DTYPE_BYTES
from conversion.inert_pickle import load_inert
from conversion.plain_name import is_plain_name

METADATA_NAME = ".metadata"
BACKEND_NAME = "metadata.json"
COMMON_NAME = "common.pt"
NEMO_PREFIX = "module."  # NeMo wraps the model once more than Megatron-LM and Megatron-Bridge do
BACKEND = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}

# Optimizer and random state, where weights have no prefix of their own.
_NO_WEIGHT = re.compile(r"(chained_\d+\.)?optimizer\b.*|rng_state.*|rerun_state.*")


@dataclass(frozen=True)
class Place:
    """Where a chunk lies, in bytes of a file of the folder."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Chunk:
    """A block of an entry on disk: where it begins in the entry, its sizes, and its place."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place


@dataclass(frozen=True)
class Entry:
    """A tensor of the checkpoint under its whole key; the dtype is torch's name."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[Chunk, ...]

    @property
    def num_values(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class DistMetadata:
    """The tensors and the objects of a checkpoint folder; an object is a pickle, such as TransformerEngine's extra state."""

    directory: Path
    entries: tuple[Entry, ...]
    objects: dict[str, Place]

    @property
    def prefix(self) -> str:
        """What the names of weights begin with: NeMo's prefix or nothing."""
        return NEMO_PREFIX if any(entry.key.startswith(NEMO_PREFIX) for entry in self.entries) else ""

    def weights(self, prefix: str) -> DistMetadata:
        """The part whose names begin with `prefix`, without optimizer and random state."""
        entries = tuple(entry for entry in self.entries if _is_weight(entry.key, prefix))
        return replace(self, entries=entries, objects={key: place for key, place in self.objects.items() if _is_weight(key, prefix)})

    def ends(self) -> dict[str, int]:
        """Each file that holds something, and the bytes that it must have at least."""
        ends: dict[str, int] = {}
        for place in (*(chunk.place for entry in self.entries for chunk in entry.chunks), *self.objects.values()):
            ends[place.file] = max(ends.get(place.file, 0), place.offset + place.length)
        return ends


def _is_weight(key: str, prefix: str) -> bool:
    return key.startswith(prefix) and not _NO_WEIGHT.fullmatch(key)


def read_dist_metadata(directory: Path) -> DistMetadata:
    """All that a checkpoint folder says of its tensors.

    Raises:
        ValueError: if the folder is of another format, or a file of it is missing or corrupt.
    """
    _require_backend(directory)
    try:
        with open(directory / METADATA_NAME, "rb") as stream:
            return _parse(load_inert(stream)[0], directory)
    except FileNotFoundError:
        raise ValueError(f"{directory} has no {METADATA_NAME}: the checkpoint is not complete") from None
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise ValueError(f"{directory / METADATA_NAME} is corrupt ({error}); copy the checkpoint again") from error


def file_problems(directory: Path, ends: dict[str, int]) -> list[str]:
    """A sentence for each file that is missing or shorter than the checkpoint needs."""
    problems = []
    for name, end in ends.items():
        path = directory / name
        if not path.is_file():
            problems.append(f"{path} is missing: the checkpoint is not complete")
        elif (size := path.stat().st_size) < end:
            problems.append(f"{path} is truncated: it has {size} bytes, its checkpoint needs {end}; copy it again")
    return problems


def _require_backend(directory: Path) -> None:
    try:
        backend = json.loads((directory / BACKEND_NAME).read_text(encoding="utf-8"))["sharded_backend"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{directory} has no readable metadata.json: it is no distributed checkpoint, or not a complete one") from error
    if backend != BACKEND["sharded_backend"]:
        raise ValueError(f"{directory} is a distributed checkpoint of the format {backend!r}; expected {BACKEND['sharded_backend']!r}")


def _parse(metadata: Any, directory: Path) -> DistMetadata:
    places: dict[tuple[str, tuple[int, ...]], Place] = {}
    objects: dict[str, Place] = {}
    for index, info in metadata.storage_data.items():
        if not is_plain_name(info.relative_path):
            raise ValueError(f"it names the file {info.relative_path!r}, which is not inside its folder")
        place = Place(info.relative_path, _count(info.offset), _count(info.length))
        if getattr(index, "offset", None) is None:
            objects[index.fqn] = place
        else:
            places[index.fqn, _sizes(index.offset)] = place
    entries = []
    for key, entry in metadata.state_dict_metadata.items():
        if hasattr(entry, "chunks"):
            chunks = tuple(Chunk(_sizes(c.offsets), _sizes(c.sizes), places[key, _sizes(c.offsets)]) for c in entry.chunks)
            shape, dtype = _sizes(entry.size), entry.properties.state[0]
            if dtype not in DTYPE_BYTES:
                raise ValueError(f"{key} has no dtype that is known")
            if any(len(chunk.offsets) != len(shape) or len(chunk.sizes) != len(shape) for chunk in chunks):
                raise ValueError(f"{key} has chunks of other dimensions")
            entries.append(Entry(key, shape, dtype, chunks))
    return DistMetadata(directory, tuple(entries), objects)


def _sizes(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(_count, values))


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"it has {value!r} where a size should be")
    return value
