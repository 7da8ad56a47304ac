"""Which tensors of a checkpoint have one row per token: by the names of known families, else by shape."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class TokenNames:
    """How the models of some families name their token matrices.

    Attributes:
        input: end of the name of the input embeddings.
        output: name of the output layer where it is a matrix of its own.
        biases: names of its bias, one value per token; RoBERTa has one bias under two names.
    """

    input: str
    output: str
    biases: tuple[str, ...]
    families: str = ""


# The first row whose input name fits holds, so longer names stand before their ends.
TOKEN_NAMES = (
    TokenNames(
        "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.weight",
        ("cls.predictions.bias", "cls.predictions.decoder.bias"),
        "BERT",
    ),
    TokenNames(
        "embeddings.word_embeddings.weight", "lm_head.decoder.weight", ("lm_head.bias", "lm_head.decoder.bias"), "RoBERTa, XLM-R, CamemBERT"
    ),
    TokenNames("embed_tokens.weight", "lm_head.weight", ("lm_head.bias",), "Llama, Mistral, Gemma, Qwen, OPT, Phi, OLMo"),
    TokenNames("wte.weight", "lm_head.weight", ("lm_head.bias",), "GPT-2, GPT-J, CodeGen, StarCoder"),
    TokenNames("word_embeddings.weight", "lm_head.weight", ("lm_head.bias",), "Bloom, Falcon"),
    TokenNames("embed_in.weight", "embed_out.weight", ("embed_out.bias",), "GPT-NeoX, Pythia"),
)
# Further rows per token, which follow the vocabulary too: a vector per layer (Gemma 3n and 4), and what layers that predict further tokens have of
# their own (DeepSeek V3, GLM 4.5).
_BESIDE = re.compile(r"(?:.*\.)?embed_tokens_per_layer\.weight|(?:.*\.)?layers\.\d+\.(?:embed_tokens|shared_head\.head)\.weight")
_IN_A_LAYER = re.compile(r"(?:^|\.)\d+\.")
_OUTPUT_WORDS = re.compile(r"head|output|unembed|predictions")
_LANGUAGE_MODEL = "language_model."  # so begin the names of a whole causal model that stands beside a vision tower
# Masked language models that count positions from the id of their padding token on.
POSITIONS_FROM_PAD = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "xmod")


def input_names(names: Iterable[str]) -> list[str]:
    """Of some tensor names those that input embeddings could have."""
    return [name for name in names if names_of(name) is not None and not _BESIDE.fullmatch(name)]


def names_beside(names: Iterable[str]) -> list[str]:
    """Of some tensor names those that have a row per token without being input embeddings or output layer."""
    return [name for name in names if _BESIDE.fullmatch(name)]


def possible_names(shapes: Mapping[str, tuple[int, ...]], num_rows: object) -> list[TokenNames]:
    """What could be the token matrices of a model, by whole names: one where it is sure, none or several where it is not.

    Where no name is known, they are the matrices outside the layers that have as many rows as the vocabulary; of two the output layer is the one
    that is called so.

    Args:
        shapes: of all tensors, by name.
        num_rows: `vocab_size` of config.json.
    """
    if known := input_names(shapes):
        return [replace(row, input=name) for name in known if (row := names_of(name)) is not None]
    tables = [name for name, shape in shapes.items() if len(shape) == 2 and shape[0] == num_rows and not _IN_A_LAYER.search(name)]
    outputs = [name for name in tables if _OUTPUT_WORDS.search(name)]
    inputs = [name for name in tables if name not in outputs]
    if len(outputs) > 1 or not inputs:
        inputs, outputs = tables, []
    output = outputs[0] if outputs else "lm_head.weight"
    return [TokenNames(name, output, (f"{output.removesuffix('.weight')}.bias",)) for name in inputs]


def names_of(input_name: str) -> TokenNames | None:
    """The row of the table for a matrix of input embeddings."""
    row = next((row for row in TOKEN_NAMES if input_name.endswith(row.input)), None)
    if row is None or not input_name.startswith(_LANGUAGE_MODEL):
        return row
    return replace(row, output=_LANGUAGE_MODEL + row.output, biases=tuple(_LANGUAGE_MODEL + name for name in row.biases))


def shared_matrix_names(names: Collection[str]) -> dict[str, str]:
    """Name of the output layer -> name of the input embeddings, for a tied model whose files have the one matrix under the former alone."""
    if input_names(names):
        return {}
    for name in names:
        prefix = _LANGUAGE_MODEL if name.startswith(_LANGUAGE_MODEL) else ""
        if name == f"{prefix}lm_head.weight":
            layers = (re.fullmatch(rf"({re.escape(prefix)}(?:.*\.)?)layers\.0\..*", other) for other in names)
            return next(({name: f"{found[1]}embed_tokens.weight"} for found in layers if found), {})
        if name in ("cls.predictions.decoder.weight", "lm_head.decoder.weight"):
            layers = (re.fullmatch(r"(\w+\.)encoder\.layer\.0\..*", other) for other in names)
            return next(({name: f"{found[1]}embeddings.word_embeddings.weight"} for found in layers if found), {})
    return {}


def output_name(names: Collection[str]) -> str | None:
    """Of some tensor names that of the output layer, by the names of known families; None where no tensor is one."""
    rows = [names_of(name) for name in input_names(names)] or list(TOKEN_NAMES)
    return next((row.output for row in rows if row is not None and row.output in names), None)


def missing_output_sentence(directory: Path, expected: str) -> str:
    """What is wrong with an untied model whose files have no output layer."""
    return (
        f"{directory}: config.json says that the output layer is a matrix of its own (tie_word_embeddings false), but the weights have no"
        f" {expected}; restore the matrix (true is right only for a model that was trained with one)"
    )
