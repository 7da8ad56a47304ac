"""A Hugging Face checkpoint prepared for the engine, and all checks that need no weights: for `hf_to_nemo` and for `inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conversion.checkpoints.hf_checkpoint import HFCheckpoint
from conversion.checkpoints.hf_files import require_language_model
from conversion.families import family_of
from conversion.families.family import Family
from conversion.families.mapping import map_to_megatron
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.numbers import finite


@dataclass(frozen=True)
class ForEngine:
    """What becomes of a checkpoint.

    Attributes:
        config: Megatron's configuration.
        tensors: under the engine's names; nothing is read yet, and reading refuses NaN and infinity.
        is_quantized: whether its weights were in parts that are put together.
    """

    family: Family
    config: Mapping[str, Any]
    tensors: list[LazyTensor]
    is_quantized: bool


def for_engine(hf: HFCheckpoint) -> ForEngine:
    """The model of a folder under the engine's names.

    Raises:
        ValueError: if it is of a family or variant that is not supported, or tensors are missing, unknown, or of another shape or type.
    """
    source = str(hf.directory)
    require_language_model(hf.config, source=source)
    family = family_of(hf.model_type, source=source)
    config = family.megatron_config(hf.config, tied=hf.tie_word_embeddings, source=source)
    is_quantized = family.reads_quantized(hf.config)
    whole = hf.whole(quantized=is_quantized)
    tensors = {name: finite(tensor, source=source) for name, tensor in whole.untied_tensors().items()}
    return ForEngine(family, config, map_to_megatron(family.table_of(tensors), tensors, config, source=source), is_quantized)


def require_rows(directory: Path, *, needed: int, rows: int) -> None:
    """Refuse a tokenizer with more tokens than the model of its folder has rows.

    Raises:
        ValueError: saying how many each has.
    """
    if needed > rows:
        raise ValueError(
            f"the tokenizer in {directory} needs {needed} rows, but the model has {rows}: they do not belong together;"
            " put the model's own tokenizer there, or give the model new rows with `python -m conversion.transfer`"
        )
