"""A second model whose input embeddings give token similarity: a helper in the target language, or an encoder of both languages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy import sparse

from conversion.embeddings.layers import input_matrix_name
from conversion.embeddings.spaces.sparse_weights import piece_weights
from conversion.embeddings.spaces.token_vectors import Rows, TokenVectors
from conversion.embeddings.vocabularies.vocabulary import Vocabulary
from conversion.embeddings.vocabularies.vocabulary_map import map_vocabulary
from conversion.formats.lazy_tensor import Bits, LazyTensor, release_pages
from conversion.formats.numbers import numbers_of

_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class HelperModel:
    """Vocabulary and token matrices of a model.

    Attributes:
        input_rows: (num_tokens, size) float32.
        output_rows: the same of the output layer; None where it is the input matrix.
    """

    name: str
    vocabulary: Vocabulary
    input_rows: Rows
    output_rows: Rows | None = None

    @classmethod
    def open(cls, directory: Path) -> HelperModel:
        """Read a model folder with its tokenizer.

        Raises:
            ValueError: if it has no input embeddings, too few of them for its tokenizer, or rows that are not numbers.
        """
        from conversion.checkpoints.hf_checkpoint import HFCheckpoint
        from data_prep.tokenizers.plain_tokenizer import read_tokenizer

        checkpoint = HFCheckpoint.open(directory)
        vocabulary = Vocabulary.of(read_tokenizer(directory)).as_source()
        name = input_matrix_name(checkpoint)
        if len(vocabulary) > checkpoint.shape(name)[0]:
            raise ValueError(
                f"the tokenizer in {directory} has {len(vocabulary)} ids, but {name} has only {checkpoint.shape(name)[0]} rows;"
                " give the model with its own tokenizer"
            )
        output = checkpoint.output_name if checkpoint.output_name and not checkpoint.tie_word_embeddings else None
        names = (name, output) if output else (name,)
        matrices = [_float_rows(checkpoint.tensors[each], len(vocabulary)) for each in names]
        for each, matrix in zip(names, matrices):
            if not all(np.isfinite(block).all() for block in _blocks(matrix)):
                raise ValueError(f"{directory}: {each} holds NaN or infinite values; repair the checkpoint")
        return cls(str(directory), vocabulary, matrices[0], matrices[1] if output else None)

    def token_vectors(self, target: Vocabulary, *, output: bool = False) -> TokenVectors:
        """The helper's own rows of the target's tokens of text, without a copy; tokens that it lacks, or has as rows of zeros, are left out."""
        matrix = self.output_rows if output and self.output_rows is not None else self.input_rows
        source_ids = map_vocabulary(self.vocabulary, target).source_ids
        is_known = (source_ids >= 0) & target.is_text
        is_known[is_known] = _says_something(matrix)[source_ids[is_known]]
        return TokenVectors(matrix, np.where(is_known, source_ids, -1))

    def piece_means(self, vocabulary: Vocabulary) -> TokenVectors:
        """For each token of text the mean of the rows of the pieces into which the model cuts it (GaMS: Vreš et al. 2024, equation 7)."""
        ids = np.flatnonzero(vocabulary.is_text)
        weights = piece_weights(self.vocabulary, vocabulary, ids)
        means = _Means(weights.astype(np.float32), self.input_rows[:])
        known = np.flatnonzero(_says_something(means))
        index = np.full(len(vocabulary), -1, dtype=np.int64)
        index[ids[known]] = known
        return TokenVectors(means, index)

    @cached_property
    def size(self) -> int:
        """Dimensions of a row."""
        return int(self.input_rows.shape[1])


@dataclass(frozen=True)
class _FloatRows:
    """Rows of another dtype in float32, made when they are asked for: all at once they would take twice the memory of the file."""

    bits: Bits
    dtype_name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_rows, size)"""
        return self.bits.shape

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, which: slice | np.ndarray, /) -> np.ndarray:
        rows = numbers_of(self.bits[which], self.dtype_name)
        release_pages(self.bits)
        return rows


@dataclass(frozen=True)
class _Means:
    """Weighted sums of the rows of a table, made when they are asked for.

    Attributes:
        weights: (num_rows, num_table_rows) float32
    """

    weights: sparse.csr_matrix
    table: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """(num_rows, size)"""
        return (self.weights.shape[0], self.table.shape[1])

    def __len__(self) -> int:
        return int(self.weights.shape[0])

    def __getitem__(self, which: slice | np.ndarray, /) -> np.ndarray:
        return np.asarray(self.weights[which] @ self.table)


def _float_rows(matrix: LazyTensor, num_rows: int) -> Rows:
    """(num_rows, size) float32: as they lie in the file where it has that dtype."""
    bits = matrix.bits()[:num_rows]
    return bits.view(np.float32) if matrix.dtype_name == "float32" else _FloatRows(bits, matrix.dtype_name)


def _says_something(matrix: Rows) -> np.ndarray:
    """(num_rows,) bool: the row is not all zeros."""
    return np.concatenate([np.zeros(0, dtype=bool), *(np.any(block != 0, axis=1) for block in _blocks(matrix))])


def _blocks(matrix: Rows) -> Iterator[np.ndarray]:
    """Some rows at a time, whose pages are given back after them."""
    for start in range(0, len(matrix), _BLOCK_ROWS):
        yield matrix[start : start + _BLOCK_ROWS]
        release_pages(matrix)
