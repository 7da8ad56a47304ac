"""The matrices of a checkpoint that have one row per token, and what becomes of each in a transfer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conversion.checkpoints.hf_files import language_part, rows_of_vocabulary
from conversion.checkpoints.token_names import POSITIONS_FROM_PAD, TOKEN_NAMES, TokenNames, names_beside

if TYPE_CHECKING:
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint

OUTPUT_LAYERS = ("tied", "copied", "transferred", "random")
TOKEN_DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class TokenLayers:
    """Names of a checkpoint's tensors that have a row per token.

    Attributes:
        output: None where the output layer is the input matrix and stored once.
        new_output: how an output layer of its own is called in this family.
        biases: of the output layer, one value per token.
        num_rows: rows of each, padding included.
        beside: further tensors with a row per token, such as a vector per layer.
    """

    input: str
    output: str | None
    new_output: str
    biases: tuple[str, ...]
    num_rows: int
    beside: tuple[str, ...] = ()

    @property
    def by_token(self) -> tuple[str, ...]:
        """All that there are."""
        return (self.input, *([self.output] if self.output else []), *self.biases, *self.beside)


def input_matrix_name(checkpoint: HFCheckpoint) -> str:
    """Name of the matrix of input embeddings.

    Raises:
        ValueError: if none or several could be it.
    """
    return _names(checkpoint).input


def _names(checkpoint: HFCheckpoint) -> TokenNames:
    possible = checkpoint.possible_names
    if len(possible) != 1:
        found = ", ".join(names.input for names in possible) or "none"
        expected = ", ".join(row.input for row in TOKEN_NAMES[1:])
        raise ValueError(
            f"{checkpoint.directory}: expected one matrix of input embeddings, a name ending in {expected}, or the only one outside the layers"
            f" with as many rows as vocab_size in config.json; found {found}"
        )
    return possible[0]


def find_token_layers(checkpoint: HFCheckpoint) -> TokenLayers:
    """Find the matrices by their names, and make sure that there are no others.

    Raises:
        ValueError: if there are no input embeddings, if sizes disagree, or if another tensor has a row per token too.
    """
    from conversion.families import language_config  # which imports numpy; the help of a command needs this module's names alone

    names = checkpoint.names()
    row = _names(checkpoint)
    input_name = row.input
    num_rows = checkpoint.shape(input_name)[0]
    config = language_config(checkpoint.config)
    expected = config.get("vocab_size")
    if num_rows not in rows_of_vocabulary(config):
        problem = f"says vocab_size {expected}; repair the checkpoint" if expected is not None else "has no vocab_size; add it there"
        raise ValueError(f"{checkpoint.directory}: {input_name} has {num_rows} rows, but config.json {problem}")
    _require_whole_vocabulary(checkpoint, num_rows)
    layers = TokenLayers(
        input_name,
        row.output if row.output in names else None,
        row.output,
        tuple(name for name in row.biases if name in names),
        num_rows,
        tuple(names_beside(names)),
    )
    output, known = layers.output, set(layers.by_token)
    for name in layers.by_token[1:]:
        if checkpoint.shape(name)[0] != num_rows:
            raise ValueError(f"{checkpoint.directory}: {name} has {checkpoint.shape(name)[0]} rows, but {input_name} has {num_rows}")
    for name in (input_name, *([output] if output else [])):
        dtype = checkpoint.tensors[name].dtype_name
        if dtype not in TOKEN_DTYPES:
            raise ValueError(
                f"{checkpoint.directory}: {name} is of type {dtype}; expected {', '.join(TOKEN_DTYPES)}: give the model as it was before"
                " it was quantised"
            )
    # The size of a vocabulary may by chance be another size of the model too; then nothing can be said about the others.
    if num_rows not in set(_other_sizes(checkpoint.config)):
        others = [name for name in names if name not in known and num_rows in checkpoint.shape(name)]
        if others:
            raise ValueError(
                f"{checkpoint.directory}: {', '.join(others)} has a row per token too, but nothing is known about it; drop it first"
            )
    return layers


def _require_whole_vocabulary(checkpoint: HFCheckpoint, num_rows: int) -> None:
    """Refuse models that give a meaning to ids by where the vocabulary ends.

    Raises:
        ValueError: naming the key of config.json.
    """
    config = checkpoint.config
    if per_layer := [name for name in checkpoint.names() if name.endswith("embed_tokens_per_layer.weight")]:
        size_per_layer = (language_part(config) or config).get("vocab_size_per_layer_input")
        if size_per_layer != num_rows or checkpoint.shape(per_layer[0])[0] != num_rows:
            raise ValueError(
                f"{checkpoint.directory} has vocab_size_per_layer_input {size_per_layer} in its config.json and {checkpoint.shape(per_layer[0])[0]} rows in"
                f" {per_layer[0]}, but {num_rows} rows per token: ids beyond those have no vector per layer, and no other vocabulary can be given"
                " to such a model"
            )
    for part, settings in config.items():
        if isinstance(settings, dict) and "vocab_offset" in settings:
            raise ValueError(
                f"{checkpoint.directory} has vocab_offset {settings['vocab_offset']} in {part} of its config.json: ids from there on are not text, so no"
                " other vocabulary can be given to such a model"
            )


def _other_sizes(config: Mapping[str, Any]) -> Iterator[int]:
    """Whole numbers in a config.json that are not sizes of the vocabulary."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _other_sizes(value)
        elif isinstance(value, int) and key not in ("vocab_size", "vocab_size_per_layer_input", "embedding_size"):
            yield value


def require_same_padding(checkpoint: HFCheckpoint, pad_id: int | None) -> None:
    """Refuse another padding id for models that count positions from it: each token would get the position of another.

    Raises:
        ValueError: naming both ids.
    """
    old_id = checkpoint.config.get("pad_token_id")
    if checkpoint.model_type in POSITIONS_FROM_PAD and pad_id != old_id:
        found = "has none" if pad_id is None else f"has it at {pad_id}"
        raise ValueError(
            f"{checkpoint.directory} is a {checkpoint.model_type} model, which counts positions from its padding token, id {old_id}, but the"
            f" target tokenizer {found}; give a tokenizer with the padding token at {old_id}"
        )


def choose_output_layer(requested: str | None, *, source_is_tied: bool, source: str) -> str:
    """What becomes of the output layer: as requested, or as the source has it.

    `tied`: input and output are one matrix.  `copied`: the output starts as a copy of the transferred input and is trained apart (what
    the GaMS paper calls tied).  `transferred`: the source's own output layer is transferred.  `random`: drawn from N(mean, variance).

    Raises:
        ValueError: if the source lacks what is requested.
    """
    if requested is None:
        return "tied" if source_is_tied else "transferred"
    if requested == "tied" and not source_is_tied:
        raise ValueError(
            f"--output-layer tied would drop the output layer of {source}, which is a matrix of its own; choose transferred, copied or random"
        )
    if requested == "transferred" and source_is_tied:
        raise ValueError(
            f"--output-layer transferred needs an output layer of its own, but {source} ties it to the input embeddings; choose tied or copied"
        )
    return requested
