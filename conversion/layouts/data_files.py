"""The same chunks in another folder: data files linked, or only the needed ones copied."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from common.progress import Progress
from conversion.formats.dist_metadata import DistMetadata, Entry, Place

_ALIGNMENT = 64  # as `dist_checkpoint` writes chunks
_COPY_BYTES = 64 << 20


@dataclass(frozen=True)
class PlacedData:
    """Tensors and objects with their places in the new folder.

    Attributes:
        linked: names of files that are the same as in the old folder; the others are new.
    """

    entries: tuple[Entry, ...]
    objects: Mapping[str, Place]
    linked: tuple[str, ...]


def link_data(source: DistMetadata, directory: Path) -> PlacedData | None:
    """Give every data file a second name in `directory`; None where the file system cannot."""
    linked = []
    try:
        for name in source.ends():
            os.link(source.directory / name, directory / name)
            linked.append(name)
    except OSError:  # another file system, one without hard links, or files of another user
        for name in linked:
            (directory / name).unlink()
        return None
    return PlacedData(source.entries, source.objects, tuple(linked))


def copy_data(source: DistMetadata, directory: Path) -> PlacedData:
    """Copy each chunk that is referred to, so that optimizer state between them stays behind; in the kernel, without looking at it."""
    places = sorted({place for entry in source.entries for place in (c.place for c in entry.chunks)} | {*source.objects.values()}, key=_key)
    moved: dict[Place, Place] = {}
    with Progress("copying", total=sum(place.length for place in places), unit="B", is_bytes=True) as progress:
        for name in source.ends():
            with open(source.directory / name, "rb") as old, open(directory / name, "wb") as new:
                position = 0
                for place in (place for place in places if place.file == name):
                    position += -position % _ALIGNMENT
                    _copy_range(old.fileno(), place.offset, new.fileno(), position, place.length)
                    moved[place] = Place(name, position, place.length)
                    position += place.length
                    progress.advance(place.length)
    entries = tuple(replace(e, chunks=tuple(replace(chunk, place=moved[chunk.place]) for chunk in e.chunks)) for e in source.entries)
    return PlacedData(entries, {key: moved[place] for key, place in source.objects.items()}, ())


def _key(place: Place) -> tuple[str, int]:
    return place.file, place.offset


def _copy_range(source: int, source_offset: int, target: int, target_offset: int, length: int) -> None:
    done = 0
    while done < length:
        count = min(length - done, _COPY_BYTES)
        try:
            copied = os.copy_file_range(source, target, count, source_offset + done, target_offset + done)
        except OSError:  # across file systems on old kernels
            copied = os.pwrite(target, os.pread(source, count, source_offset + done), target_offset + done)
        if not copied:
            raise ValueError("a data file became shorter while it was copied; copy the checkpoint again")
        done += copied
