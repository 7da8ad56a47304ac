"""Names of the tensors that have one row per token, by family of models."""

from __future__ import annotations

import re
from collections.abc import Collection
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
    families: str


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
_LANGUAGE_MODEL = "language_model."  # so begin the names of a whole causal model that stands beside a vision tower
# Masked language models that count positions from the id of their padding token on.
POSITIONS_FROM_PAD = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "xmod")


def input_names(names: Collection[str]) -> list[str]:
    """Of some tensor names those that input embeddings could have."""
    return [name for name in names if names_of(name) is not None]


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
    """Of some tensor names that of the output layer; None where no tensor is one."""
    rows = [names_of(name) for name in input_names(names)] or list(TOKEN_NAMES)
    return next((row.output for row in rows if row is not None and row.output in names), None)


def missing_output_sentence(directory: Path, names: Collection[str]) -> str:
    """What is wrong with an untied model whose files have no output layer."""
    row = names_of(next(iter(input_names(names)), ""))
    return (
        f"{directory}: config.json says that the output layer is a matrix of its own (tie_word_embeddings false), but the weights have no"
        f" {row.output if row else 'lm_head.weight'}; restore the matrix (true is right only for a model that was trained with one)"
    )
