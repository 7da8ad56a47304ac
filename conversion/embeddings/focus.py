"""FOCUS: new tokens are combined from the shared ones that are used alike in target text (Dobler and de Melo 2023)."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from conversion.embeddings.method import TransferInputs, plan_rows
from conversion.embeddings.row_plan import RowPlan
from conversion.embeddings.sparse_weights import sparsemax_weights
from conversion.embeddings.static_vectors import TokenVectors, train_token_vectors


def focus_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the sparsemax combination of shared ones near it in a fastText space.

    Raises:
        ValueError: without text, with too little, or if no shared token occurs in it often enough.
    """
    if inputs.text is None:
        raise ValueError("--method focus trains vectors on target text; give it with --text FILE")
    return focus_plan(inputs, train_token_vectors(inputs))


def focus_plan(inputs: TransferInputs, vectors: TokenVectors) -> RowPlan:
    """FOCUS in a given space of target tokens (section 3; equations 1 to 3).

    Raises:
        ValueError: if no shared token has a vector.
    """
    shared, new = inputs.shared_ids, inputs.new_ids
    if not len(shared):
        raise ValueError(
            "source and target vocabulary share no token of text, so --method focus has nothing to combine; choose another method"
        )
    anchors, ids = shared[vectors.is_known[shared]], new[vectors.is_known[new]]
    if not len(anchors):
        raise ValueError(
            f"none of the {len(shared)} tokens that both vocabularies have has a vector, so --method focus has nothing to combine;"
            " give more --text or choose another method"
        )
    weights = sparsemax_weights(vectors.rows(ids), vectors.rows(anchors))
    return plan_rows(inputs, ids, to_source_columns(weights, inputs.overlap.source_ids[anchors], len(inputs.source)))


def to_source_columns(weights: sparse.csr_matrix, source_ids: np.ndarray, num_source: int) -> sparse.csr_matrix:
    """The same weights with source ids for columns; anchors that are one source token add up.

    Args:
        weights: (num_rows, num_anchors)
        source_ids: (num_anchors,)
    """
    renamed = sparse.csr_matrix((weights.data, source_ids[weights.indices], weights.indptr), shape=(weights.shape[0], num_source))
    renamed.sum_duplicates()
    return renamed
