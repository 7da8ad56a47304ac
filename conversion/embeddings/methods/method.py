"""The interface of transfer methods: what each is given and returns.

A method is one function from `TransferInputs` to `RowPlan`; `METHODS` in the package lists them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from scipy import sparse

from conversion.embeddings.methods.row_plan import MappedRows, Origin, RowPlan
from conversion.embeddings.options import LearningOptions, VectorOptions
from conversion.embeddings.spaces.sparse_weights import piece_weights
from conversion.embeddings.spaces.stored_rows import StoredRows, release_rows
from conversion.embeddings.vocabularies.vocabulary import Vocabulary
from conversion.embeddings.vocabularies.vocabulary_map import SPECIAL_MATCHES, TEXT_MATCHES, Match, VocabularyMap

if TYPE_CHECKING:
    from conversion.embeddings.spaces.helper_model import HelperModel
    from conversion.embeddings.spaces.word_vectors import WordVectors

Made = TypeVar("Made")
_BLOCK_ROWS = 4096
_ORIGIN_OF_MATCH = {
    Match.BYTES: Origin.COPIED,
    Match.CASE: Origin.COPIED_CASE,
    Match.SPACE: Origin.COPIED_SPACE,
    Match.CASE_SPACE: Origin.COPIED_CASE_SPACE,
    **dict.fromkeys(SPECIAL_MATCHES, Origin.SPECIAL),
}


@dataclass(frozen=True)
class Teacher:
    """The model whose rows are transferred, for methods that run it.

    Attributes:
        directory: its folder.
        output_layer: what becomes of the output layer, one of `OUTPUT_LAYERS`.
        random_statistics: as `TransferRequest` has it.
    """

    directory: Path
    output_layer: str
    random_statistics: str
    options: LearningOptions


@dataclass(frozen=True)
class TransferInputs:
    """What a method may look at; the model's matrices are not among it, but for methods that learn.

    Attributes:
        overlap: which target tokens the source has too.
        tokenize, tokenize_source: texts -> ids of the target, of the source, without special tokens.
        text: documents of target-language text, which can be read again and again.
        source_text: the same in the source's language.
        helper: a model in the target's language whose tokenizer has the target's tokens.
        encoder: a model of both languages with a tokenizer of its own.
        word_vectors, source_word_vectors: of words in the target's and in the source's language.
        dictionary: pairs of a source word and a target word.
        parallel: pairs of a source sentence and its translation, which can be read again and again.
        num_atoms: most shared tokens in the sum that OMP makes of one new token; None for the paper's, where the helper is large enough.
        num_pairs: shared tokens on which SAVA's map is fitted, drawn by the seed; None for all.
        as_published: follow a method's published code where it does otherwise than its paper or than we do (docs/embeddings.md).
        fallback: what a token gets for which a method has nothing: `mean` of its source pieces (else random) or `random`.
        teacher: the model itself, for methods that learn by running it.
        made: what `once` has made, for these inputs and those that came from them by `replace`.
    """

    source: Vocabulary
    target: Vocabulary
    overlap: VocabularyMap
    seed: int
    tokenize: Callable[[list[str]], list[list[int]]]
    tokenize_source: Callable[[list[str]], list[list[int]]]
    text: Iterable[str] | None = None
    vectors: VectorOptions = field(default_factory=VectorOptions)
    source_text: Iterable[str] | None = None
    helper: HelperModel | None = None
    encoder: HelperModel | None = None
    word_vectors: WordVectors | None = None
    source_word_vectors: WordVectors | None = None
    dictionary: Sequence[tuple[str, str]] | None = None
    parallel: Iterable[tuple[str, str]] | None = None
    num_atoms: int | None = None
    num_pairs: int | None = None
    as_published: bool = False
    fallback: str = "mean"
    teacher: Teacher | None = None
    made: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What several methods need alike, made for the first of them; made again for inputs of which any material is another.

        Args:
            key: names it, together with what else it depends on (such as the seed).
        """
        material = [value for value in vars(self).values() if value is not self.made and value is not self.overlap]
        whole = (key, *(id(value) for value in material if not isinstance(value, int | str)))
        if whole not in self.made:
            self.made[whole] = (material, make())  # the material is kept, so that nothing else gets its id
        return cast(Made, self.made[whole][1])

    @property
    def new_ids(self) -> np.ndarray:
        """(num_new,) target ids of text tokens that the source lacks, in ascending order."""
        return np.flatnonzero(self.target.is_text & ~self.overlap.is_matched)

    @property
    def shared_ids(self) -> np.ndarray:
        """(num_shared,) target ids of text tokens that the source has too, in ascending order."""
        return np.flatnonzero(np.isin(self.overlap.matches, TEXT_MATCHES))

    def without_copies(self) -> TransferInputs:
        """The same inputs, but all tokens of text are new; special tokens keep their rows."""
        is_special = np.isin(self.overlap.matches, SPECIAL_MATCHES)
        source_ids = np.where(is_special, self.overlap.source_ids, -1)
        return replace(self, overlap=VocabularyMap(source_ids, np.where(is_special, self.overlap.matches, Match.NONE)))


def copy_all(inputs: TransferInputs) -> RowPlan:
    """Copy every row, for vocabularies without new tokens."""
    assert not len(inputs.new_ids), "a token is new"
    return plan_rows(inputs, np.array([], dtype=np.int64), sparse.csr_matrix((0, len(inputs.source))), fallback="random")


def plan_rows(
    inputs: TransferInputs,
    ids: np.ndarray,
    weights: sparse.csr_matrix,
    *,
    fallback: str | None = None,
    mapped: MappedRows | None = None,
) -> RowPlan:
    """Copy what both vocabularies have, combine what the method has weights for, and fall back for the rest.

    Args:
        ids: (num_rows,) target ids of the rows of `weights`, in ascending order.
        weights: (num_rows, num_source_tokens); a row without entries is one that the method has nothing for.
        fallback: instead of the inputs' own.
        mapped: rows that the method makes by a map, in place of weights.
    """
    num_target = len(inputs.target)
    origins = np.full(num_target, Origin.FALLBACK_RANDOM, dtype=object)
    for match, origin in _ORIGIN_OF_MATCH.items():
        origins[inputs.overlap.matches == match] = origin
    has_weights = np.diff(weights.indptr) > 0
    origins[ids[has_weights]] = Origin.COMBINED
    parts = spread(ids, weights, num_target)
    left = np.setdiff1d(inputs.new_ids, ids[has_weights])
    if mapped is not None:
        origins[mapped.ids] = mapped.origin
        left = np.setdiff1d(left, mapped.ids)
    if (fallback or ("random" if inputs.as_published else inputs.fallback)) == "mean" and len(left):
        pieces = piece_weights(inputs.source, inputs.target, left)
        has_pieces = np.diff(pieces.indptr) > 0
        origins[left[has_pieces]] = Origin.FALLBACK_MEAN
        parts = _joined(parts, spread(left, pieces, num_target))
    return RowPlan(origins, inputs.overlap.source_ids, sparse.csr_matrix(parts), mapped)


def _joined(method: sparse.csr_matrix, fallback: sparse.csr_matrix) -> sparse.csr_matrix:
    """The rows of two matrices of one shape, of which no row has entries in both."""
    if not method.nnz:
        return fallback
    rows = StoredRows(method.shape[1])
    for start in range(0, method.shape[0], _BLOCK_ROWS):
        rows.append(method[start : start + _BLOCK_ROWS] + fallback[start : start + _BLOCK_ROWS])
        release_rows(method)
    return rows.matrix()


def spread(ids: np.ndarray, rows: sparse.csr_matrix, num_rows: int) -> sparse.csr_matrix:
    """Put the given rows at the given places of a taller matrix.

    Args:
        ids: (num_given,) in ascending order.
        rows: (num_given, num_columns)

    Returns:
        (num_rows, num_columns)
    """
    lengths = np.zeros(num_rows, dtype=np.int64)
    lengths[ids] = np.diff(rows.indptr)
    return sparse.csr_matrix((rows.data, rows.indices, np.concatenate([[0], np.cumsum(lengths)])), shape=(num_rows, rows.shape[1]))
