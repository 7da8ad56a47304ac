"""The matrices of a checkpoint that have one row per token, and what becomes of each in a transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conversion.hf_checkpoint import HFCheckpoint

OUTPUT_LAYERS = ("tied", "copied", "transferred", "random")

_INPUT_NAMES = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_OUTPUT_NAMES = ("lm_head.weight", "embed_out.weight", "lm_head.decoder.weight")
_BIAS_NAMES = ("lm_head.bias", "lm_head.decoder.bias", "embed_out.bias")


@dataclass(frozen=True)
class TokenLayers:
    """Names of a checkpoint's tensors that have a row per token.

    Attributes:
        output: None where the output layer is the input matrix and stored once.
        biases: of the output layer, one value per token.
        num_rows: rows of each, padding included.
    """

    input: str
    output: str | None
    biases: tuple[str, ...]
    num_rows: int


def input_matrix_name(checkpoint: HFCheckpoint) -> str:
    """Name of the matrix of input embeddings.

    Raises:
        ValueError: if none or several could be it.
    """
    inputs = [name for name in checkpoint.names() if name.endswith(_INPUT_NAMES)]
    if len(inputs) != 1:
        found = ", ".join(inputs) or "none"
        raise ValueError(
            f"{checkpoint.directory}: expected one matrix of input embeddings, a name ending in {', '.join(_INPUT_NAMES)}; found {found}"
        )
    return inputs[0]


def find_token_layers(checkpoint: HFCheckpoint) -> TokenLayers:
    """Find the matrices by their names, and make sure that there are no others.

    Raises:
        ValueError: if there are no input embeddings, if sizes disagree, or if another tensor has a row per token too.
    """
    names = checkpoint.names()
    input_name = input_matrix_name(checkpoint)
    num_rows = checkpoint.shape(input_name)[0]
    expected = checkpoint.config.get("vocab_size")
    if expected != num_rows:
        raise ValueError(
            f"{checkpoint.directory}: {input_name} has {num_rows} rows, but config.json says vocab_size {expected}; repair the checkpoint"
        )
    outputs = [name for name in names if name in _OUTPUT_NAMES]
    biases = tuple(name for name in names if name in _BIAS_NAMES)
    known = {input_name, *outputs, *biases}
    for name in (*outputs, *biases):
        if checkpoint.shape(name)[0] != num_rows:
            raise ValueError(f"{checkpoint.directory}: {name} has {checkpoint.shape(name)[0]} rows, but {input_name} has {num_rows}")
    # The size of a vocabulary may by chance be another size of the model too; then nothing can be said about the others.
    if num_rows not in {value for key, value in checkpoint.config.items() if key != "vocab_size" and isinstance(value, int)}:
        others = [name for name in names if name not in known and num_rows in checkpoint.shape(name)]
        if others:
            raise ValueError(
                f"{checkpoint.directory}: {', '.join(others)} has a row per token too, but nothing is known about it; drop it first"
            )
    return TokenLayers(input_name, outputs[0] if outputs else None, biases, num_rows)


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
