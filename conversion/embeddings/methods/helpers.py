"""Methods that use a helper model: CLP, SAVA and OMP.

The helper is a model of any size in the target's language with the target's tokenizer.  Its rows say how a new token lies to the
tokens that both vocabularies have; what is combined, or mapped to, are the source's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy import sparse

from conversion.embeddings.methods.affine_maps import AffineFit, fit_map
from conversion.embeddings.methods.matching_pursuit import pursuit_weights
from conversion.embeddings.methods.method import TransferInputs, plan_rows
from conversion.embeddings.methods.row_plan import MappedRows, RowPlan
from conversion.embeddings.spaces.sparse_weights import Columns, sparsemax_weights
from conversion.embeddings.spaces.token_vectors import TokenVectors, unit_rows
from conversion.formats.lazy_tensor import LazyTensor
from conversion.formats.numbers import Numbers, numbers_of

_MOST_ATOMS = 64  # the default of the published tool, for helpers of 512 dimensions and more
_DIMENSIONS_PER_ATOM = 8
_BLOCK_ROWS = 4096
_NO_WEIGHTS = np.array([], dtype=np.int64)


def clp_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the mean of all shared ones, weighted by cosine in the helper's space.

    CLP-Transfer (Ostendorff and Rehm 2023, equation 1): each weight is the similarity divided by the sum of similarities, over
    all shared tokens.  That is not a sparse matrix, but it is one of the rank of the helper: `rows = X_new (X_shared' M) / sums`.

    Raises:
        ValueError: if the helper has no shared or no new token.
    """
    vectors, anchors, ids = _helper_space(inputs, "clp")
    new, shared = vectors.rows(ids), unit_rows(vectors.rows(anchors))
    total = shared.sum(axis=0, dtype=np.float64)
    blocks = (unit_rows(new[start : start + _BLOCK_ROWS]) for start in range(0, len(ids), _BLOCK_ROWS))
    sums = np.concatenate([np.zeros(0), *(block @ total for block in blocks)])
    source_ids = inputs.overlap.source_ids[anchors]

    def fit(matrix: LazyTensor, is_output: bool) -> Callable[[np.ndarray], Numbers]:
        moment = shared.T @ _float_rows(matrix, source_ids)
        return lambda places: unit_rows(new[places]) @ moment / sums[places].astype(np.float32)[:, None]

    return plan_rows(inputs, _NO_WEIGHTS, _no_rows(inputs), mapped=MappedRows(ids, fit))


def clp_plus_method(inputs: TransferInputs) -> RowPlan:
    """CLP with sparsemax of the similarities in place of their shares (CLP+: Yamaguchi et al. 2024): few and only positive weights.

    Raises:
        ValueError: if the helper has no shared or no new token.
    """
    vectors, anchors, ids = _helper_space(inputs, "clp-plus")
    columns = Columns(inputs.overlap.source_ids[anchors], len(inputs.source))
    return plan_rows(inputs, ids, sparsemax_weights(vectors.rows(ids), vectors.rows(anchors), columns))


def sava_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is its helper row through an affine map fitted on the shared tokens.

    SAVA (Moroni et al. 2025, section 3 and appendix A), by closed-form least squares, which gives what 1,000 steps of Adam approach;
    with few pairs a cross-validated ridge keeps it from fitting their noise.

    Raises:
        ValueError: if the helper has no shared or no new token.
    """
    return _sava(inputs, "sava", "least-squares")


def sava_adam_method(inputs: TransferInputs) -> RowPlan:
    """SAVA with the fit as in its code: 1,000 full-batch steps of Adam at a learning rate of 0.001."""
    return _sava(inputs, "sava-adam", "adam")


def sava_plain_method(inputs: TransferInputs) -> RowPlan:
    """SAVA by the equation of its paper alone: affine least squares on the rows as they are, without scaling."""
    return _sava(inputs, "sava-plain", "plain")


def sava_procrustes_method(inputs: TransferInputs) -> RowPlan:
    """SAVA with a rotation in place of the affine map: orthogonal Procrustes on the scaled rows; its code scales their columns once more."""
    return _sava(inputs, "sava-procrustes", "ortho" if inputs.as_published else "procrustes")


def omp_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the sum of the 64 shared ones that rebuild its helper row best.

    Training-free transplantation by orthogonal matching pursuit (Goddard and Fernandes Neto 2025); coefficients have signs.
    The paper's 64 are few beside the dimensions of its helpers.  As many as a small helper has dimensions would rebuild any
    row, its noise included, so there are at most an eighth as many as dimensions unless the inputs say otherwise.  The published
    code always takes 64, and compares atoms at their own length.

    Raises:
        ValueError: if the helper has no shared or no new token, or fewer dimensions than atoms are wanted.
    """
    vectors, anchors, ids = _helper_space(inputs, "omp")
    assert inputs.helper is not None
    size, num_atoms = inputs.helper.size, inputs.num_atoms
    if num_atoms is None:
        num_atoms = min(_MOST_ATOMS, size if inputs.as_published else max(1, size // _DIMENSIONS_PER_ATOM))
    if not 1 <= num_atoms <= size:
        raise ValueError(f"--num-atoms is {num_atoms}; expected 1 to the {size} dimensions of the helper {inputs.helper.name}")
    columns = Columns(inputs.overlap.source_ids[anchors], len(inputs.source))
    weights = pursuit_weights(vectors.rows(ids), vectors.rows(anchors), columns, num_atoms=num_atoms, long_first=inputs.as_published)
    return plan_rows(inputs, ids, weights)


def _sava(inputs: TransferInputs, name: str, fit: AffineFit) -> RowPlan:
    vectors, anchors, ids = _helper_space(inputs, name)
    assert inputs.helper is not None
    helper = inputs.helper
    outputs = inputs.once("helper output", lambda: helper.token_vectors(inputs.target, output=True))
    # Both spaces must know a token: a zero row in one of them says nothing.
    anchors, ids = anchors[outputs.is_known[anchors]], ids[outputs.is_known[ids]]
    anchors = _some_pairs(inputs, anchors)
    source_ids = inputs.overlap.source_ids[anchors]

    def make_map(matrix: LazyTensor, is_output: bool) -> Callable[[np.ndarray], Numbers]:
        space = outputs if is_output else vectors
        mapping = fit_map(space.rows(anchors), _float_rows(matrix, source_ids), fit=fit, seed=inputs.seed)
        return lambda places: mapping(space.rows(ids[places]))

    plan = plan_rows(inputs, _NO_WEIGHTS, _no_rows(inputs), mapped=MappedRows(ids, make_map))
    if fit in ("least-squares", "plain") and len(anchors) < helper.size:
        warning = (
            f"--method {name} has {len(anchors):,} pairs for a map of {helper.size:,} dimensions, so a cross-validated ridge chooses among"
            " the maps that fit them; give more pairs, or --method sava-adam for the fit of SAVA's paper"
        )
        plan = replace(plan, warnings=(warning,))
    return plan


def _some_pairs(inputs: TransferInputs, anchors: np.ndarray) -> np.ndarray:
    """As many shared tokens as are wanted for the map, drawn by the seed; all by default.

    A smaller number draws a part of what a larger one draws, so that a series over the number differs in nothing else
    (Moroni et al. 2025, appendix B, who do not say which tokens they took).

    Raises:
        ValueError: if there are fewer.
    """
    if inputs.num_pairs is None:
        return anchors
    if not 2 <= inputs.num_pairs <= len(anchors):
        raise ValueError(f"--num-pairs is {inputs.num_pairs}; expected 2 to the {len(anchors)} shared tokens that the helper knows")
    drawn = np.random.default_rng(inputs.seed).permutation(len(anchors))[: inputs.num_pairs]
    return anchors[np.sort(drawn)]


def _helper_space(inputs: TransferInputs, name: str) -> tuple[TokenVectors, np.ndarray, np.ndarray]:
    """The helper's vectors, the shared tokens that have one, and the new tokens that have one."""
    assert inputs.helper is not None
    helper = inputs.helper
    vectors = inputs.once("helper input", lambda: helper.token_vectors(inputs.target))
    shared, new = inputs.shared_ids, inputs.new_ids
    anchors, ids = shared[vectors.is_known[shared]], new[vectors.is_known[new]]
    for known, tokens, kind in ((anchors, shared, "shared"), (ids, new, "new")):
        if len(tokens) and not len(known):
            raise ValueError(
                f"the helper {inputs.helper.name} has none of the {len(tokens)} {kind} tokens of the target vocabulary, so --method {name}"
                " cannot be used; give a helper that was trained with the target tokenizer"
            )
    if not len(shared):
        raise ValueError(
            f"source and target vocabulary share no token of text, so --method {name} has nothing to combine; choose another method"
        )
    return vectors, anchors, ids


def _float_rows(matrix: LazyTensor, ids: np.ndarray) -> Numbers:
    """(len(ids), size) float32"""
    return numbers_of(matrix.bits()[ids], matrix.dtype_name).astype(np.float32, copy=False)


def _no_rows(inputs: TransferInputs) -> sparse.csr_matrix:
    return sparse.csr_matrix((0, len(inputs.source)))
