"""Reading every value of a checkpoint: NaN and infinity, tokens that nothing has trained, and files edited since they were written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from common.artifacts import edited, read_manifest
from common.progress import Progress
from conversion.checkpoints.hf_files import CONFIG_NAME, read_json
from conversion.inspection.description import Description
from conversion.inspection.places import HUGGING_FACE, Place

HF_IN_CONTEXT = "context/hf"
TOKEN_TABLES = ("embedding.word_embeddings.weight", "output_layer.weight")

if TYPE_CHECKING:
    from conversion.formats.lazy_tensor import LazyTensor


def read_all(description: Description, place: Place) -> None:
    """Add a problem for each tensor with values that are not numbers, and each file that is not as its manifest says."""
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
    manifest = read_manifest(place.directory)
    description.problems += edited(place.directory, manifest) if manifest is not None else ()
    description.notes += _untrained(tensors, place)
    if not description.problems:
        description.notes.append(f"read all values of {len(tensors)} tensors: every one is a finite number")


def _tensors(place: Place) -> Iterable[LazyTensor]:
    if place.format == HUGGING_FACE:
        from conversion.checkpoints.hf_checkpoint import HFCheckpoint
        from conversion.families import reads_quantized

        hf = HFCheckpoint.open(place.directory)
        return hf.whole(quantized=reads_quantized(hf.config)).tensors.values()
    from conversion.formats.dist_checkpoint import read_dist_checkpoint
    from conversion.formats.dist_metadata import read_dist_metadata

    return read_dist_checkpoint(place.weights, prefix=read_dist_metadata(place.weights).prefix).values()


def _untrained(tensors: Iterable[LazyTensor], place: Place) -> list[str]:
    """Sentences about the tokens that end a text, where nothing has trained them."""
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.checkpoints.untrained_rows import end_of_text_ids, end_of_text_sentences

    by_name = {tensor.name: tensor for tensor in tensors}
    if place.format == HUGGING_FACE:
        hf_dir, config_path = place.directory, place.directory / CONFIG_NAME
        names = set(HFCheckpoint.open(place.directory).token_matrices())
    else:
        hf_dir, config_path = place.directory / HF_IN_CONTEXT, place.directory / HF_IN_CONTEXT / CONFIG_NAME
        names = set(TOKEN_TABLES)
    if not config_path.is_file():
        return []
    matrices = {name: tensor for name, tensor in by_name.items() if name in names}
    return end_of_text_sentences(matrices, end_of_text_ids(hf_dir), read_json(config_path, expected=""))
