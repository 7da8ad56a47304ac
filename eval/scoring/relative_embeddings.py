"""How alike the embeddings of models are, whatever their sizes and axes: relative representations (SAVA, section 6; Moschella et al. 2023).

A token is described by its similarity to anchors, the same tokens in every model: 128 that begin a word and 128 that do not.  Two models
are as alike as these descriptions are, by the mean cosine over all tokens that they share.  Rotating a model's space or scaling all of it
changes nothing; with cosines to the anchors, scaling single rows changes nothing either.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NORMS = ("dot", "cosine")
ANCHORS_OF_A_KIND = 128
_CHUNK_ROWS = 8192

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class TokenMatrices:
    """One model's embeddings.

    Attributes:
        rows: bytes of text that a token stands for -> its row; without special and byte tokens.
        input: (vocab_size, hidden_size)
        output: the same of the output layer; the input matrix itself where they are tied.
    """

    name: str
    rows: dict[bytes, int]
    input: Matrix
    output: Matrix


def read_matrices(directory: Path, *, name: str) -> TokenMatrices:
    """Embeddings of a Hugging Face folder; nothing else of the model is read.

    Raises:
        ValueError: if the folder has no embeddings or tokenizer that are known, or they do not belong together.
    """
    from conversion.checkpoints.hf_checkpoint import HFCheckpoint
    from conversion.embeddings.layers import input_matrix_name
    from data_prep.tokenizers.files import load_tokenizer

    if not directory.is_dir():
        raise ValueError(f"the model folder {directory} does not exist")
    checkpoint = HFCheckpoint.open(directory)
    embeddings = checkpoint.tensor(input_matrix_name(checkpoint)).float().numpy()
    tied = checkpoint.tie_word_embeddings or checkpoint.output_name is None
    output = embeddings if tied else checkpoint.tensor(str(checkpoint.output_name)).float().numpy()
    rows = token_rows(load_tokenizer(directory))
    if max(rows.values(), default=0) >= len(embeddings):
        raise ValueError(
            f"the tokenizer in {directory} has ids beyond the {len(embeddings)} rows of the embeddings; it belongs to another model"
        )
    return TokenMatrices(name, rows, embeddings, output)


def token_rows(tokenizer: PreTrainedTokenizerFast) -> dict[bytes, int]:
    """Bytes of text -> id, of a vocabulary's ordinary tokens; of several tokens for the same bytes the first."""
    import json

    from data_prep.tokenizers.token_bytes import BYTE_TOKEN, bytes_of, spelling_of

    spelling = spelling_of(json.loads(tokenizer.backend_tokenizer.to_str()))
    added = set(tokenizer.get_added_vocab()) | set(tokenizer.all_special_tokens)
    rows: dict[bytes, int] = {}
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if token not in added and not (spelling.byte_tokens and BYTE_TOKEN.fullmatch(token)):
            rows.setdefault(bytes_of(token, spelling), index)
    return rows


@dataclass(frozen=True)
class Similarities:
    """Every model beside every other.

    Attributes:
        input, output: (models, models), 1 on the diagonal.
        anchors: what tokens are described by, as text.
        num_tokens: tokens that all models share, the anchors among them.
    """

    names: tuple[str, ...]
    input: NDArray[np.float64]
    output: NDArray[np.float64]
    anchors: tuple[str, ...]
    num_tokens: int


def compare(models: Sequence[TokenMatrices], *, norm: str = "dot", seed: int = 42) -> Similarities:
    """Similarity of all models' embeddings over the tokens that all of them have.

    Args:
        norm: `dot`, as SAVA, or `cosine`, which leaves the length of rows out.
        seed: of the anchors.

    Raises:
        ValueError: if the models share too few tokens of a kind, or a row describes nothing (all zeros, or no numbers).
    """
    shared = sorted(set.intersection(*(set(model.rows) for model in models)))
    anchors = choose_anchors(shared, seed=seed)
    position = {token: index for index, token in enumerate(shared)}
    chosen = [position[anchor] for anchor in anchors]
    matrices = {}
    for kind in ("input", "output"):
        described = []
        for model in models:
            picked = getattr(model, kind)[[model.rows[token] for token in shared]]
            described.append(_described(picked, chosen, norm=norm, model=model.name, tokens=shared))
        matrices[kind] = np.array([[mean_cosine(a, b) for b in described] for a in described])
    texts = tuple(anchor.decode(errors="replace") for anchor in anchors)
    return Similarities(tuple(model.name for model in models), matrices["input"], matrices["output"], texts, len(shared))


def choose_anchors(tokens: Sequence[bytes], *, seed: int) -> list[bytes]:
    """128 tokens that begin a word, then 128 that do not.

    Raises:
        ValueError: if there are fewer of a kind.
    """
    rng = random.Random(seed)
    anchors: list[bytes] = []
    for what, begins in (("begin a word", True), ("do not begin a word", False)):
        candidates = [token for token in tokens if token.startswith(b" ") == begins]
        if len(candidates) < ANCHORS_OF_A_KIND:
            raise ValueError(
                f"the models share {len(candidates)} tokens that {what}, but {ANCHORS_OF_A_KIND} are needed as anchors;"
                " compare models with the same or a similar vocabulary"
            )
        anchors += rng.sample(candidates, ANCHORS_OF_A_KIND)
    return anchors


def relative(embeddings: Matrix, anchors: Matrix, *, norm: str) -> Matrix:
    """Similarity of every row (rows, size) to every anchor (anchors, size): (rows, anchors)."""
    if norm == "cosine":
        embeddings, anchors = _unit(embeddings), _unit(anchors)
    return np.concatenate([embeddings[start : start + _CHUNK_ROWS] @ anchors.T for start in range(0, len(embeddings), _CHUNK_ROWS)])


def mean_cosine(first: Matrix, second: Matrix) -> float:
    """Mean over rows of their cosine; both matrices are (num_rows, size)."""
    return float((_unit(first).astype(np.float64) * _unit(second)).sum(axis=1).mean())


def _described(picked: Matrix, anchors: Sequence[int], *, norm: str, model: str, tokens: Sequence[bytes]) -> Matrix:
    described = relative(picked, picked[list(anchors)], norm=norm)
    lengths = np.linalg.norm(described, axis=1)
    if (bad := np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))).size:
        token = tokens[int(bad[0])].decode(errors="replace")
        raise ValueError(f"{bad.size} rows of {model} are zero or no numbers, first that of {token!r}; check the checkpoint")
    return described


def _unit(rows: Matrix) -> Matrix:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Matrix = rows / np.where(lengths > 0, lengths, 1)
    return unit
