"""What lies where in Megatron's distributed checkpoint format (`torch_dist`), found without torch, Megatron or reading a tensor.

It is a folder of torch's distributed checkpoint package: `.metadata` is a pickle that says for each tensor which chunks make it
up and where each lies; `__0_0.distcp` and others hold the chunks, each as `torch.save` writes it.  Megatron adds
`metadata.json` (the format's name) and what is not sharded: `common.pt`, or, since Megatron-core 0.19, an object among the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.artifacts import DigestingWriter
from common.own_files import is_plain_name
from common.plain_files import require_plain_files
from conversion.formats.dtypes import DTYPE_BYTES
from conversion.formats.inert_pickle import Record, load_inert
from conversion.formats.pickle_names import INDEX, refusal, unknown_names
from conversion.formats.plain_pickle import Call, Global, Instance, Items, dump

METADATA_NAME = ".metadata"
BACKEND_NAME = "metadata.json"
COMMON_NAME = "common.pt"
FLATTENED = "nd_reformulated_orig_global_shape"  # Megatron's name for the shape of what it has stored as rows of numbers
COMMON_KEY = "common_state/shard_0_1"
NEMO_PREFIX = "module."  # NeMo wraps the model once more than Megatron-LM and Megatron-Bridge do
BACKEND = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}

# Optimizer and random state, where weights have no prefix of their own.
_NO_WEIGHT = re.compile(r"(chained_\d+\.)?optimizer\b.*|rng_state.*|rerun_state.*|common_state/.*")

Block = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins in the box, and its sizes
# Comparisons of two blocks for each block: in a grid of n x n, which is the worst that programs write, there are n.
_FREE_COMPARISONS = 1_000_000
_COMPARISONS_PER_BLOCK = 1_000


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

    def problem(self) -> str:
        """A sentence if the chunks do not fill the tensor exactly: values that none holds would be whatever memory held."""
        wrong = tiling_problem(self.shape, [(chunk.offsets, chunk.sizes) for chunk in self.chunks])
        return wrong and f"the chunks of {self.key.removeprefix(NEMO_PREFIX)} do not cover it exactly: {wrong}; copy the checkpoint again"


@dataclass(frozen=True)
class DistMetadata:
    """The tensors and the objects of a checkpoint folder; an object is a pickle, such as TransformerEngine's extra state.

    Attributes:
        flattened: key -> shape of each tensor that Megatron has stored as rows of numbers; optimizer state of earlier releases.
    """

    directory: Path
    entries: tuple[Entry, ...]
    objects: dict[str, Place]
    flattened: dict[str, tuple[int, ...] | None]

    @property
    def prefix(self) -> str:
        """What the names of weights begin with: NeMo's prefix or nothing."""
        return NEMO_PREFIX if any(entry.key.startswith(NEMO_PREFIX) for entry in self.entries) else ""

    def weights(self, prefix: str) -> DistMetadata:
        """The part whose names begin with `prefix`, without optimizer and random state."""
        entries = tuple(entry for entry in self.entries if _is_weight(entry.key, prefix))
        return replace(self, entries=entries, objects={key: place for key, place in self.objects.items() if _is_weight(key, prefix)})

    @property
    def common(self) -> Place | None:
        """Where what is not sharded lies; None where it is missing."""
        path = self.directory / COMMON_NAME
        return Place(COMMON_NAME, 0, path.stat().st_size) if path.is_file() else self.objects.get(COMMON_KEY)

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
    require_plain_files(directory)
    _require_backend(directory)
    path = directory / METADATA_NAME
    try:
        found = load_inert(path.read_bytes())
        unknown = unknown_names(found.names, INDEX)
        metadata = None if unknown else _parse(found.content, directory)
    except FileNotFoundError:
        raise ValueError(f"{directory} has no {METADATA_NAME}: the checkpoint is not complete") from None
    except Exception as error:  # what a damaged pickle raises is anybody's guess
        raise ValueError(f"{path} is corrupt ({error}); copy the checkpoint again") from error
    if metadata is None:
        raise ValueError(refusal(path, unknown))
    return metadata


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
        raise ValueError(f"{directory} has no readable metadata.json: it is not a complete distributed checkpoint") from error
    if backend != BACKEND["sharded_backend"]:
        raise ValueError(f"{directory} is a distributed checkpoint of the format {backend!r}; expected {BACKEND['sharded_backend']!r}")


def _parse(metadata: Any, directory: Path) -> DistMetadata:
    """What the index says.

    Torch makes objects of the same pickle and looks places up in a dictionary of them, so an index by which it could find another
    place than is found here, such as two for one tensor, is refused.
    """
    index = _fields(metadata, "Metadata", "MCoreMetadata")
    places: dict[tuple[str, tuple[int, ...]], Place] = {}
    objects: dict[str, Place] = {}
    for key, stored in index["storage_data"].items():
        name, offset = (_fields(key, "MetadataIndex").get(field) for field in ("fqn", "offset"))
        place = _place(stored)
        if not isinstance(name, str) or name in objects or (offset is not None and (name, _sizes(offset)) in places):
            raise ValueError("it has two places for one name")
        if offset is None:
            objects[name] = place
        else:
            places[name, _sizes(offset)] = place
    described = index["state_dict_metadata"]
    entries = [_entry(key, entry, places) for key, entry in described.items() if entry.called.endswith(".TensorStorageMetadata")]
    without_place = [key for key, entry in described.items() if entry.called.endswith(".BytesStorageMetadata") and key not in objects]
    if without_place or any(name not in described for name in objects):
        raise ValueError("its objects and their places are not the same")
    shapes = {key: beside[FLATTENED] for key, beside in (index.get("mcore_data") or {}).items() if FLATTENED in beside}
    flattened = {key: None if shape is None else _sizes(shape) for key, shape in shapes.items()}
    return DistMetadata(directory, tuple(entries), objects, flattened)


def _place(stored: Any) -> Place:
    fields = _fields(stored, "_StorageInfo")
    if not is_plain_name(fields["relative_path"]):
        raise ValueError(f"it names the file {fields['relative_path']!r}, which is not inside its folder")
    if fields.get("transform_descriptors"):
        raise ValueError("its files are compressed, which Megatron does not do")
    return Place(fields["relative_path"], _count(fields["offset"]), _count(fields["length"]))


def _entry(key: str, described: Any, places: Mapping[tuple[str, tuple[int, ...]], Place]) -> Entry:
    fields = _fields(described, "TensorStorageMetadata")
    chunks = []
    for chunk in (_fields(chunk, "ChunkStorageMetadata") for chunk in fields["chunks"]):
        offsets = _sizes(chunk["offsets"])
        chunks.append(Chunk(offsets, _sizes(chunk["sizes"]), places[key, offsets]))
    shape, dtype = _sizes(fields["size"]), fields["properties"].state[0]
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"{key} has no dtype that is known")
    if any(len(chunk.offsets) != len(shape) or len(chunk.sizes) != len(shape) for chunk in chunks):
        raise ValueError(f"{key} has chunks of other dimensions")
    if any(math.prod(chunk.sizes) * DTYPE_BYTES[dtype] > chunk.place.length for chunk in chunks):
        raise ValueError(f"a chunk of {key} is larger than its place")
    return Entry(key, shape, dtype, tuple(chunks))


def _fields(value: Any, *kinds: str) -> dict[str, Any]:
    if not isinstance(value, Record) or value.called.rpartition(".")[2] not in kinds:
        raise ValueError(f"it has something else where a {kinds[0]} should be")
    return value.fields()


def _sizes(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(_count, values))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"it has {value if type(value) is int else type(value).__name__} where a size should be")
    return value


# -- writing the index, without torch: the objects of its classes, by name -----------------------------------------------

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


def tiling_problem(shape: Sequence[int], blocks: Sequence[Block]) -> str:
    """What is wrong with blocks that should fill a box of this shape; empty if nothing is.

    Args:
        blocks: each of as many dimensions as the box.
    """
    for offsets, sizes in blocks:
        if any(offset + size > whole for offset, size, whole in zip(offsets, sizes, shape, strict=True)):
            return f"the block at {list(offsets)} is beyond its shape"
    filled = sum(math.prod(sizes) for _, sizes in blocks)
    if filled < math.prod(shape):
        return f"they hold {filled:,} of its {math.prod(shape):,} values"
    if (at := _overlap([block for block in blocks if math.prod(block[1])])) is not None:
        return f"two lie over each other at {list(at)}"
    return ""


def _overlap(blocks: list[Block]) -> tuple[int, ...] | None:
    """Where a block begins that shares something with another; blocks are met in order along the dimension that tells most apart."""
    if len(blocks) < 2:
        return None
    axis = max(range(len(blocks[0][0])), key=lambda axis: len({offsets[axis] for offsets, _ in blocks}), default=None)
    if axis is None:
        return blocks[0][0]  # two numbers in one place
    comparisons_left = _FREE_COMPARISONS + _COMPARISONS_PER_BLOCK * len(blocks)
    open_blocks: list[Block] = []
    for block in sorted(blocks, key=lambda block: block[0][axis]):
        begin = block[0][axis]
        open_blocks = [other for other in open_blocks if other[0][axis] + other[1][axis] > begin]
        comparisons_left -= len(open_blocks)
        if comparisons_left < 0 or any(_share(block, other) for other in open_blocks):
            return block[0]
        open_blocks.append(block)
    return None


def _share(a: Block, b: Block) -> bool:
    return all(
        first < second + second_size and second < first + first_size
        for first, first_size, second, second_size in zip(a[0], a[1], b[0], b[1], strict=True)
    )
