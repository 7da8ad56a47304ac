"""Methods that combine a new token from its neighbours in a space: FOCUS, WECHSEL, and both in the space of an encoder.

They differ in the space, in who may be a neighbour (shared tokens, or all of the source) and in the weights.
"""

from __future__ import annotations

import numpy as np

from conversion.embeddings.methods.method import TransferInputs, plan_rows
from conversion.embeddings.methods.row_plan import RowPlan
from conversion.embeddings.spaces.sparse_weights import Columns, softmax_weights, sparsemax_weights
from conversion.embeddings.spaces.static_vectors import train_token_vectors
from conversion.embeddings.spaces.token_vectors import TokenVectors

# WECHSEL (Minixhofer et al. 2022, section 4), also taken by OFA and GaMS.
NUM_NEIGHBORS, TEMPERATURE = 10, 0.1


def focus_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the sparsemax combination of shared ones near it in a fastText space.

    The space is trained on text that the target tokenizer has cut.

    Raises:
        ValueError: if the text is too small or if no shared token occurs in it often enough.
    """
    return focus_plan(inputs, train_token_vectors(inputs), name="focus")


def focus_words_method(inputs: TransferInputs) -> RowPlan:
    """FOCUS in the space of given word vectors: a token has the vector of its text, as a word (Yamaguchi et al. 2024, appendix E.2).

    Raises:
        ValueError: if no shared token has a vector.
    """
    assert inputs.word_vectors is not None
    return focus_plan(inputs, inputs.word_vectors.token_vectors(inputs.target, inputs.tokenize), name="focus-words")


def focus_cse_method(inputs: TransferInputs) -> RowPlan:
    """FOCUS in the space of an encoder: a token is the mean of the encoder's input rows of its pieces (GaMS, equations 7 and 8).

    Raises:
        ValueError: if no shared token has a vector.
    """
    return focus_plan(inputs, _piece_means(inputs), name="focus-cse")


def wechsel_cse_method(inputs: TransferInputs) -> RowPlan:
    """WECHSEL in the space of an encoder of both languages, which needs neither alignment nor dictionary (GaMS, equations 7 and 8).

    The paper's equation 2 is of every token of the target's vocabulary, shared ones too; special tokens keep their rows.

    Raises:
        ValueError: if no source token has a vector.
    """
    assert inputs.encoder is not None
    combined = inputs.without_copies() if inputs.as_published else inputs
    return wechsel_plan(combined, inputs.encoder.piece_means(inputs.source), _piece_means(inputs), name="wechsel-cse")


def _piece_means(inputs: TransferInputs) -> TokenVectors:
    assert inputs.encoder is not None
    encoder = inputs.encoder
    return inputs.once("encoder target", lambda: encoder.piece_means(inputs.target))


def focus_plan(inputs: TransferInputs, vectors: TokenVectors, *, name: str = "focus") -> RowPlan:
    """FOCUS in a given space of target tokens (Dobler and de Melo 2023, section 3).

    Raises:
        ValueError: if no shared token has a vector.
    """
    shared, new = inputs.shared_ids, inputs.new_ids
    if not len(shared):
        raise ValueError(
            f"source and target vocabulary share no token of text, so --method {name} has nothing to combine; choose another method"
        )
    anchors, ids = shared[vectors.is_known[shared]], new[vectors.is_known[new]]
    if not len(anchors):
        raise ValueError(
            f"none of the {len(shared)} tokens that both vocabularies have has a vector, so --method {name} has nothing to combine;"
            " give more --text or choose another method"
        )
    columns = Columns(inputs.overlap.source_ids[anchors], len(inputs.source))
    return plan_rows(inputs, ids, sparsemax_weights(vectors.rows(ids), vectors.rows(anchors), columns))


def wechsel_plan(inputs: TransferInputs, source_vectors: TokenVectors, target_vectors: TokenVectors, *, name: str = "wechsel") -> RowPlan:
    """WECHSEL in a given common space (Minixhofer et al. 2022, section 3): the ten nearest of all source tokens, by softmax.

    Unlike its code, tokens that both vocabularies have are copied, and source tokens without a vector are not neighbours.

    Args:
        source_vectors, target_vectors: of the tokens of each vocabulary, in one space.

    Raises:
        ValueError: if no source token has a vector.
    """
    anchors = np.flatnonzero(source_vectors.is_known)
    if not len(anchors):
        raise ValueError(f"no source token has a vector, so --method {name} has nothing to combine; give other vectors")
    new = inputs.new_ids
    ids = new[target_vectors.is_known[new]]
    vectors, columns = (target_vectors.rows(ids), source_vectors.rows(anchors)), Columns(anchors, len(inputs.source))
    return plan_rows(inputs, ids, softmax_weights(*vectors, columns, num_neighbors=NUM_NEIGHBORS, temperature=TEMPERATURE))
