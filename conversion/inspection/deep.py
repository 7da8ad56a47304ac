"""Reading every value of a checkpoint: NaN and infinity in its weights, and files edited since they were written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from conversion.inspection.description import Description
from conversion.inspection.places import HUGGING_FACE, Place
from data_prep.artifacts import digest_file, read_manifest
from data_prep.progress import Progress

if TYPE_CHECKING:
    from conversion.lazy_tensor import LazyTensor


def read_all(description: Description, place: Place) -> None:
    """Add a problem for each tensor with values that are no numbers, and each file that is not as its manifest says."""
    if description.problems:
        description.notes.append("the values were not read, because files are missing or damaged")
        return
    try:
        tensors = list(_tensors(place))
    except ValueError as error:
        description.problems.append(str(error))
        return
    with Progress("reading", total=sum(tensor.nbytes for tensor in tensors), unit="B", is_bytes=True) as progress:
        for tensor in tensors:
            try:
                values = tensor.read()
            except ValueError as error:
                description.problems.append(str(error))
                return
            if values.is_floating_point() and (count := int((~values.isfinite()).sum())):
                description.problems.append(f"{tensor.name} has {count:,} values that are NaN or infinite")
            progress.advance(tensor.nbytes)
    description.problems += _edited(place.directory)
    if not description.problems:
        description.notes.append(f"read all values of {len(tensors)} tensors: every one is a finite number")


def _tensors(place: Place) -> Iterable[LazyTensor]:
    if place.format == HUGGING_FACE:
        from conversion.hf_checkpoint import HFCheckpoint

        return HFCheckpoint.open(place.directory).tensors.values()
    from conversion.dist_checkpoint import read_dist_checkpoint
    from conversion.dist_metadata import read_dist_metadata

    return read_dist_checkpoint(place.weights, prefix=read_dist_metadata(place.weights).prefix).values()


def _edited(directory: Path) -> list[str]:
    manifest = read_manifest(directory)
    records = manifest.files if manifest is not None else {}
    return [
        f"{directory / name} was edited: its digest is not that of its manifest"
        for name, record in records.items()
        if record.digest is not None and digest_file(directory / name) != record.digest
    ]
