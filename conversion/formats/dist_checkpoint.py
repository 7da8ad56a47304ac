"""Megatron's distributed checkpoint format (`torch_dist`), read and written without Megatron, process group or model.

Megatron stacks the layers of a block: one entry `decoder.layers.mlp.linear_fc1.weight` whose first dimension counts layers;
newer versions have one entry per layer.  Both are read here as `decoder.layers.0.mlp.linear_fc1.weight` and so on; the stacked
form is written, a chunk per layer.  `dist_metadata` says what the folder is made of.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from common.artifacts import DigestingWriter
from conversion.formats.dist_metadata import (
    BACKEND,
    BACKEND_NAME,
    COMMON_NAME,
    METADATA_NAME,
    Chunk,
    Entry,
    Place,
    file_problems,
    read_dist_metadata,
    write_dist_metadata,
)
from conversion.formats.large_file import LargeFileWriter
from conversion.formats.lazy_tensor import Bits, FileSpan, LazyTensor, bits_dtype
from conversion.formats.loading_safety import unsafe_parts
from conversion.formats.torch_file import ALIGNMENT, find_tensor, save_tensor, save_value

OBJECTS_NAME = "__0_objects.distcp"
NUM_FILES = 2  # written at the same time; as Megatron's own default

_MAX_LAYERS = 10_000  # models have a hundred

_LAYER = re.compile(r"(.*\blayers)\.(\d+)\.(.+)")
_STACKED = re.compile(r"(.*\blayers)\.(?!\d)(.+)")
_EXPERT = re.compile(r"(.*\.experts\.experts)\.(\d+)\.(.+)")
_GATE = re.compile(r"(.*\.linear_fc1\.(?:weight|bias))_w")

_Opened = Callable[[Chunk], FileSpan | LazyTensor]


@dataclass(frozen=True)
class _Block:
    """A block of an entry that is to be written: the entry's key, where the block begins in it, and its sizes."""

    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


# -- writing --------------------------------------------------------------------------------------------------------------


def write_dist_checkpoint(
    directory: Path, tensors: Sequence[LazyTensor], *, prefix: str, common: Mapping[str, Any], empty_objects: Sequence[str] = ()
) -> dict[str, str]:
    """Write tensors, holding as many at a time as there are files.

    Args:
        directory: exists and is empty.
        tensors: whole tensors; those of `layers.0`, `layers.1` ... are stacked.
        prefix: put before each name, for example `module.`.
        common: what is not sharded.
        empty_objects: names of objects that Megatron expects beside the tensors and that say nothing: each is None.

    Returns:
        File name -> digest of each file.

    Raises:
        ValueError: if layers that are to be stacked have different dtypes.
    """
    chunks, shapes = _stack(tensors, prefix)
    dtypes = _dtypes(chunks)
    parts = _balance(chunks, NUM_FILES)
    stop = threading.Event()
    with ThreadPoolExecutor(NUM_FILES) as pool:
        try:
            futures = [pool.submit(_write_file, directory / f"__0_{number}.distcp", part, stop) for number, part in enumerate(parts)]
            results = [future.result() for future in futures]
        finally:
            stop.set()  # an error in one file, or an interrupt, ends the others too
    digests = {f"__0_{number}.distcp": digest for number, (digest, _) in enumerate(results)}
    places = {block: place for _, found in results for block, place in found.items()}
    entries = [
        Entry(key, shape, dtypes[key], tuple(Chunk(b.offsets, b.sizes, places[b]) for b, _ in chunks if b.key == key))
        for key, shape in shapes.items()
    ]
    return digests | _write_description(directory, entries, prefix=prefix, common=common, empty_objects=empty_objects)


def describe_dist_checkpoint(
    directory: Path, tensors: Sequence[LazyTensor], *, prefix: str, common: Mapping[str, Any], empty_objects: Sequence[str] = ()
) -> None:
    """Write all of a checkpoint but its numbers, for who asks what it would hold; see `write_dist_checkpoint` for the arguments."""
    chunks, shapes = _stack(tensors, prefix)
    dtypes, nowhere = _dtypes(chunks), Place("__0_0.distcp", 0, 1 << 44)  # room for any tensor, as the reader of indices asks for
    entries = [
        Entry(key, shape, dtypes[key], tuple(Chunk(b.offsets, b.sizes, nowhere) for b, _ in chunks if b.key == key))
        for key, shape in shapes.items()
    ]
    _write_description(directory, entries, prefix=prefix, common=common, empty_objects=empty_objects)


def _write_description(
    directory: Path, entries: Sequence[Entry], *, prefix: str, common: Mapping[str, Any], empty_objects: Sequence[str]
) -> dict[str, str]:
    """Write what a checkpoint has besides tensors, and where those are; the digests of its files."""
    digests = {}
    with DigestingWriter(directory / OBJECTS_NAME) as stream:
        save_value([None], stream)
        digests[OBJECTS_NAME], nothing = stream.digest, Place(OBJECTS_NAME, 0, stream.size)
    objects = dict.fromkeys(_object_keys(empty_objects, prefix), nothing)
    digests[METADATA_NAME] = write_dist_metadata(directory, entries, objects)
    with DigestingWriter(directory / COMMON_NAME) as stream:
        save_value(dict(common), stream)
    (directory / BACKEND_NAME).write_text(json.dumps(BACKEND), encoding="utf-8")
    return digests


def _stack(tensors: Sequence[LazyTensor], prefix: str) -> tuple[list[tuple[_Block, LazyTensor]], dict[str, tuple[int, ...]]]:
    """Each tensor as a chunk of its entry, and the shape of each entry."""
    chunks: list[tuple[_Block, LazyTensor]] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in tensors:
        if found := _LAYER.fullmatch(tensor.name):
            key = f"{prefix}{found[1]}.{found[3]}"
            chunk = _Block(key, (int(found[2]), *(0 for _ in tensor.shape)), (1, *tensor.shape))
            shapes[key] = (max(shapes.get(key, (0,))[0], int(found[2]) + 1), *tensor.shape)
        else:
            key = f"{prefix}{tensor.name}"
            chunk = _Block(key, tuple(0 for _ in tensor.shape), tensor.shape)
            shapes[key] = tensor.shape
        chunks.append((chunk, tensor))
    return chunks, shapes


def _dtypes(chunks: Sequence[tuple[_Block, LazyTensor]]) -> dict[str, str]:
    """The dtype of each entry, by name."""
    dtypes: dict[str, str] = {}
    for chunk, tensor in chunks:
        if (others := dtypes.setdefault(chunk.key, tensor.dtype_name)) != tensor.dtype_name:
            raise ValueError(
                f"{tensor.name} is torch.{tensor.dtype_name}, but other layers have torch.{others}; convert the checkpoint to one dtype first"
            )
    return dtypes


def _balance(chunks: Sequence[tuple[_Block, LazyTensor]], num_parts: int) -> list[list[tuple[_Block, LazyTensor]]]:
    """The chunks in parts of about equal bytes, in order within each part."""
    parts: list[list[tuple[_Block, LazyTensor]]] = [[] for _ in range(num_parts)]
    loads = [0] * num_parts
    for item in sorted(chunks, key=lambda item: -item[1].nbytes):
        lightest = loads.index(min(loads))
        parts[lightest].append(item)
        loads[lightest] += item[1].nbytes
    order = {chunk: number for number, (chunk, _) in enumerate(chunks)}
    return [sorted(part, key=lambda item: order[item[0]]) for part in parts]


def _write_file(path: Path, part: Sequence[tuple[_Block, LazyTensor]], stop: threading.Event) -> tuple[str, dict[_Block, Place]]:
    places = {}
    with LargeFileWriter(path) as stream:
        for chunk, tensor in part:
            if stop.is_set():
                break
            stream.write(bytes(-stream.size % ALIGNMENT))
            start = stream.size
            save_tensor(tensor, stream, shape=chunk.sizes)
            places[chunk] = Place(path.name, start, stream.size - start)
    return stream.digest, places


def _object_keys(names: Sequence[str], prefix: str) -> list[str]:
    """Keys of objects: Megatron adds which of how many shards it is, and the layers of a block are the shards."""
    found = [(name, _LAYER.fullmatch(name)) for name in names]
    num_layers = max((int(match[2]) + 1 for _, match in found if match), default=0)
    experts = [(name, _EXPERT.fullmatch(match[3])) for name, match in found if match]
    num_experts = max((int(match[2]) + 1 for _, match in experts if match), default=0)
    keys = []
    for name, match in found:
        expert = match and _EXPERT.fullmatch(match[3])
        if match and expert:
            keys.append(f"{prefix}{match[1]}.{expert[1]}.{expert[3]}/shard_{match[2]}.{expert[2]}_{num_layers}.{num_experts}")
        else:
            keys.append(f"{prefix}{match[1]}.{match[3]}/shard_{match[2]}_{num_layers}" if match else f"{prefix}{name}/shard_0_1")
    return keys


# -- reading --------------------------------------------------------------------------------------------------------------


def read_dist_checkpoint(directory: Path, *, prefix: str) -> dict[str, LazyTensor]:
    """The tensors whose names begin with `prefix`, without it, whole and one per layer; nothing is read yet.

    A checkpoint of any tensor, pipeline and data parallel size reads the same; optimizer state has other names.

    Raises:
        ValueError: if a file is missing, corrupt or truncated, a tensor has gaps, or a part would run something when it is loaded.
    """
    metadata = read_dist_metadata(directory)
    weights = replace(metadata.weights(prefix), objects={})
    if problems := [*unsafe_parts(metadata), *file_problems(directory, weights.ends())]:
        raise ValueError(problems[0])
    tensors: list[LazyTensor] = []
    for entry in weights.entries:
        if problem := entry.problem():
            raise ValueError(problem)
        name, opened = entry.key.removeprefix(prefix), _opener(directory, entry)
        if found := _STACKED.fullmatch(name):
            _require_layers(entry)
            tensors.extend(_layer(entry, opened, f"{found[1]}.{number}.{found[2]}", number) for number in range(entry.shape[0]))
        else:
            tensors.append(_block(entry.chunks, opened, name, (0,) * len(entry.shape), entry.shape, entry.shape, entry.dtype))
    return _stack_experts(_join_gate_and_up({tensor.name: tensor for tensor in tensors}))


def _require_layers(entry: Entry) -> None:
    """Refuse a stack of which the layers could not be counted in a lifetime, or that has none."""
    if not entry.shape or not entry.num_values or entry.shape[0] > _MAX_LAYERS:
        raise ValueError(f"{entry.key} has the shape {entry.shape}, which is not a stack of layers; copy the checkpoint again")


def _join_gate_and_up(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """`linear_fc1.weight` from `_w` and `_v`, its upper and lower half: what Megatron makes of it where layers have keys of their own."""
    joined = {}
    for name, tensor in tensors.items():
        half = _GATE.fullmatch(name)
        if half and (up := tensors.get(f"{half[1]}_v")):
            joined[half[1]] = LazyTensor.concatenated(half[1], [tensor, up])
        elif not (name.endswith("_v") and f"{name[:-1]}w" in tensors):
            joined[name] = tensor
    return joined


def _stack_experts(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """One tensor of all experts of a layer, from those of each, which have keys of their own where layers have them."""
    stacked: dict[str, list[tuple[int, LazyTensor]]] = {}
    for name, tensor in tensors.items():
        if found := _EXPERT.fullmatch(name):
            stacked.setdefault(f"{found[1]}.{found[3]}", []).append((int(found[2]), tensor))
    others = {name: tensor for name, tensor in tensors.items() if not _EXPERT.fullmatch(name)}
    in_order = {name: [tensor for _, tensor in sorted(parts, key=lambda part: part[0])] for name, parts in stacked.items()}
    return others | {name: LazyTensor.stacked(name, parts) for name, parts in in_order.items()}


def _layer(entry: Entry, opened: _Opened, name: str, number: int) -> LazyTensor:
    """One layer of a stacked entry."""
    return _block(entry.chunks, opened, name, (number, *(0 for _ in entry.shape[1:])), (1, *entry.shape[1:]), entry.shape[1:], entry.dtype)


def _block(
    chunks: Sequence[Chunk],
    opened: _Opened,
    name: str,
    start: tuple[int, ...],
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: str,
) -> LazyTensor:
    """The block of an entry at `start`, viewed in `shape`; the chunks fill the entry (`Entry.problem`)."""
    overlaps = [(chunk, overlap) for chunk in chunks if (overlap := _overlap(start, sizes, chunk)) is not None]

    def read() -> Bits:
        if len(overlaps) == 1:
            return np.ascontiguousarray(_read_part(opened, *overlaps[0])).reshape(shape)
        block = np.empty(sizes, bits_dtype(dtype))
        for chunk, overlap in overlaps:
            block[_slices(overlap, start)] = _read_part(opened, chunk, overlap)
        return block.reshape(shape)

    def read_rows(first: int, last: int) -> Bits:
        axis = len(sizes) - len(shape)
        part_start = (*start[:axis], start[axis] + first, *start[axis + 1 :])
        part_shape = (last - first, *shape[1:])
        met = [chunk for chunk, _ in overlaps]
        return _block(met, opened, name, part_start, (*sizes[:axis], *part_shape), part_shape, dtype).bits()

    return LazyTensor(name, shape, dtype, read, read_rows if shape else None)


def _slices(overlap: list[tuple[int, int]], start: tuple[int, ...]) -> tuple[slice, ...]:
    """Where an overlap lies in what begins at `start`."""
    return tuple(slice(begin - first, stop - first) for (begin, stop), first in zip(overlap, start, strict=True))


def _overlap(start: tuple[int, ...], sizes: tuple[int, ...], chunk: Chunk) -> list[tuple[int, int]] | None:
    """First and last-but-one index of what a block and a chunk share, per dimension; None if they share nothing."""
    spans = [
        (max(a, b), min(a + a_size, b + b_size)) for a, a_size, b, b_size in zip(start, sizes, chunk.offsets, chunk.sizes, strict=True)
    ]
    return spans if all(begin < stop for begin, stop in spans) else None


def _opener(directory: Path, entry: Entry) -> _Opened:
    """Gives where the values of a chunk of an entry lie, looked at once: its blocks are read one after another."""

    @cache
    def opened(chunk: Chunk) -> FileSpan | LazyTensor:
        path = directory / chunk.place.file
        found = find_tensor(path, start=chunk.place.offset, length=chunk.place.length)
        if found is None or (found.shape, found.dtype_name) != (chunk.sizes, entry.dtype):
            raise ValueError(f"{path} holds something else than {METADATA_NAME} says for {entry.key}; copy the checkpoint again")
        return found

    return opened


def _read_part(opened: _Opened, chunk: Chunk, overlap: list[tuple[int, int]]) -> Bits:
    """The part of a chunk that an overlap means."""
    found, slices = opened(chunk), _slices(overlap, chunk.offsets)
    return found.part(slices) if isinstance(found, FileSpan) else found.bits()[slices]
