"""What is in a checkpoint folder, from its metadata alone: `describe`."""

from __future__ import annotations

from pathlib import Path

from common.plain_files import require_plain_files
from conversion.inspection import hugging_face, megatron
from conversion.inspection.description import Description, find_leftovers
from conversion.inspection.places import locate


def describe(path: Path, *, deep: bool = False, tokenizer: bool = False, other_python: Path | None = None) -> Description:
    """What a folder is: a checkpoint, or a run or series of them, whose newest is described.

    Args:
        deep: also read every value for NaN, and every file for edits.
        tokenizer: also compare all ways to read the tokenizer.
        other_python: an interpreter with another version of transformers, for that.

    Raises:
        ValueError: if there is no checkpoint.
    """
    place = locate(path)
    require_plain_files(place.directory)
    description = Description(path=str(place.directory), format=place.format, notes=list(place.notes))
    find_leftovers(description, place.directory)
    if place.format == hugging_face.FORMAT:
        hugging_face.describe(description, place.directory)
    else:
        megatron.describe(description, place)
    if tokenizer:
        from conversion.inspection.tokenizer import check_up

        check_up(
            description,
            place.directory if place.format == hugging_face.FORMAT else place.directory / "context/hf",
            other_python=other_python,
        )
    if deep:
        from conversion.inspection.deep import read_all

        read_all(description, place)
    return description
