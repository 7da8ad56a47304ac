"""A distributed checkpoint in any of the three layouts, with its model configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.artifacts import MANIFEST_NAME
from conversion.formats.dist_metadata import DistMetadata, read_dist_metadata
from conversion.inspection import describe
from conversion.inspection.places import HUGGING_FACE, Place, locate

if TYPE_CHECKING:
    from conversion.checkpoints.nemo_checkpoint import NeMoCheckpoint

CONTEXT = "context"


@dataclass(frozen=True)
class Source:
    """A checkpoint to be moved.

    Attributes:
        place: its folder.
        metadata: of its weights alone, with their whole names.
        context: folder with `model.json` and `hf`.
        config: Megatron's configuration.
        step, samples: how far the training had come.
    """

    place: Place
    metadata: DistMetadata
    context: Path
    family: str
    config: dict[str, Any]
    step: int
    samples: int

    @property
    def dtype(self) -> str:
        """Of most of the weights, as torch names it."""
        num_values: dict[str, int] = {}
        for entry in self.metadata.entries:
            num_values[entry.dtype] = num_values.get(entry.dtype, 0) + entry.num_values
        return max(num_values, key=lambda dtype: num_values[dtype])

    @property
    def num_rows(self) -> int:
        """Of the vocabulary table, padding included."""
        return next(entry.shape[0] for entry in self.metadata.entries if entry.key.endswith("embedding.word_embeddings.weight"))

    @property
    def is_stacked(self) -> bool:
        """Whether one entry holds a tensor of all layers."""
        return not any(".layers.0." in entry.key for entry in self.metadata.entries)

    def checkpoint(self) -> NeMoCheckpoint:
        """The same as the commands know a NeMo checkpoint: tensors under Megatron's names, and what was kept aside."""
        from conversion.checkpoints.nemo_checkpoint import NeMoCheckpoint, read_kept
        from conversion.formats.dist_checkpoint import read_dist_checkpoint

        tensors = {**read_dist_checkpoint(self.place.weights, prefix=self.metadata.prefix), **read_kept(self.context.parent)}
        return NeMoCheckpoint(self.place.directory, self.family, self.config, self.dtype, tensors)

    @property
    def manifest_dir(self) -> Path:
        """Where its manifest would be: Megatron's own layouts have a folder per iteration below it."""
        parent = self.place.directory.parent
        return (
            parent if not (self.place.directory / MANIFEST_NAME).is_file() and (parent / MANIFEST_NAME).is_file() else self.place.directory
        )


def open_source(directory: Path, context_of: Path | None) -> Source:
    """Look at a checkpoint; no value is read.

    Args:
        context_of: NeMo checkpoint of this project that says what the model is, where the input does not.

    Raises:
        ValueError: if the input is missing, damaged or no distributed checkpoint, if its model is unknown, or if its
            tensors are not those of that model.
    """
    from conversion.checkpoints.nemo_checkpoint import read_model

    place = locate(directory)
    if place.format == HUGGING_FACE:
        raise ValueError(f"{directory} is a Hugging Face checkpoint; convert it with `python -m conversion.hf_to_nemo` first")
    description = describe(directory)
    if description.problems:
        raise ValueError(f"{place.directory} cannot be used: {'; '.join(description.problems)}")
    root = Path(context_of) if context_of is not None else place.directory
    if not (root / CONTEXT / "model.json").is_file():
        raise ValueError(
            f"{root} has no {CONTEXT}/model.json, so its model is unknown; give a NeMo checkpoint of the same model with"
            " --context (`python -m conversion.hf_to_nemo` makes one of its Hugging Face checkpoint)"
        )
    family, config, _ = read_model(root)
    metadata = read_dist_metadata(place.weights)
    source = Source(
        place, metadata.weights(metadata.prefix), root / CONTEXT, family, config, description.step or 0, description.consumed_samples or 0
    )
    _require_model(source)
    return source


def _require_model(source: Source) -> None:
    """Hold the tensors to the table of the family."""
    from conversion.families import family_of
    from conversion.families.mapping import map_to_hf

    name = str(source.place.directory)
    tensors = source.checkpoint().tensors
    map_to_hf(family_of(source.family, source=name).table_of(tensors), tensors, source.config, source=name)
