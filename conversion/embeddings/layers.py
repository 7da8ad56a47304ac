"""The matrices of a checkpoint that have one row per token, and what becomes of each in a transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from conversion.checkpoints.hf_files import require_language_model
from conversion.checkpoints.token_names import POSITIONS_FROM_PAD, TOKEN_NAMES, input_names, names_of

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
    """

    input: str
    output: str | None
    new_output: str
    biases: tuple[str, ...]
    num_rows: int


def input_matrix_name(checkpoint: HFCheckpoint) -> str:
    """Name of the matrix of input embeddings.

    Raises:
        ValueError: if none or several could be it.
    """
    inputs = input_names(checkpoint.tensors)
    if len(inputs) != 1:
        found = ", ".join(inputs) or "none"
        expected = ", ".join(row.input for row in TOKEN_NAMES[1:])
        raise ValueError(f"{checkpoint.directory}: expected one matrix of input embeddings, a name ending in {expected}; found {found}")
    return inputs[0]


def find_token_layers(checkpoint: HFCheckpoint) -> TokenLayers:
    """Find the matrices by their names, and make sure that there are no others.

    Raises:
        ValueError: if there are no input embeddings, if sizes disagree, or if another tensor has a row per token too.
    """
    require_language_model(checkpoint.config, source=str(checkpoint.directory))
    from conversion.families import language_config  # which imports numpy; the help of a command needs this module's names alone

    names = checkpoint.names()
    input_name = input_matrix_name(checkpoint)
    num_rows = checkpoint.shape(input_name)[0]
    config = language_config(checkpoint.config)
    expected = config.get("vocab_size")
    if expected != num_rows:
        said = f"says vocab_size {expected}; repair the checkpoint" if expected is not None else "has no vocab_size; add it there"
        raise ValueError(f"{checkpoint.directory}: {input_name} has {num_rows} rows, but config.json {said}")
    row = names_of(input_name)
    assert row is not None
    output = row.output if row.output in names else None
    biases = tuple(name for name in row.biases if name in names)
    outputs = (*([output] if output else []), *biases)
    known = {input_name, *outputs}
    for name in outputs:
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
    if num_rows not in {value for key, value in config.items() if key != "vocab_size" and isinstance(value, int)}:
        others = [name for name in names if name not in known and num_rows in checkpoint.shape(name)]
        if others:
            raise ValueError(
                f"{checkpoint.directory}: {', '.join(others)} has a row per token too, but nothing is known about it; drop it first"
            )
    return TokenLayers(input_name, output, row.output, biases, num_rows)


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


def choose_output_layer(wanted: str | None, *, source_is_tied: bool, source: str) -> str:
    """What becomes of the output layer: as wanted, or as the source has it.

    `tied`: input and output are one matrix.  `copied`: the output starts as a copy of the transferred input and is trained apart (what
    the GaMS paper calls tied).  `transferred`: the source's own output layer is transferred.  `random`: drawn from N(mean, variance).

    Raises:
        ValueError: if the source has not what is wanted.
    """
    if wanted is None:
        return "tied" if source_is_tied else "transferred"
    if wanted == "tied" and not source_is_tied:
        raise ValueError(
            f"--output-layer tied would drop the output layer of {source}, which is a matrix of its own; choose transferred, copied or random"
        )
    if wanted == "transferred" and source_is_tied:
        raise ValueError(
            f"--output-layer transferred needs an output layer of its own, but {source} ties it to the input embeddings; choose tied or copied"
        )
    return wanted
