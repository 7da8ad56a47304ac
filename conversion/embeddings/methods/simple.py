"""The methods that need nothing but the two tokenizers: random rows, and the mean of subwords."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from conversion.embeddings.methods.method import TransferInputs, plan_rows
from conversion.embeddings.methods.row_plan import Origin, RowPlan
from conversion.embeddings.spaces.sparse_weights import piece_weights


def random_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have and draw all other rows from N(mean, variance) of the source rows.

    Random in the papers of SAVA (Moroni et al. 2025, section 3.1) and of Yamaguchi et al. (2024, section 4.1), and the `-rand`
    baselines of OFA (Liu et al. 2024, section 5.2).
    """
    ids = np.array([], dtype=np.int64)
    plan = plan_rows(inputs, ids, sparse.csr_matrix((0, len(inputs.source))), fallback="random")
    origins = np.where(plan.is_drawn, Origin.RANDOM, plan.origins).astype(object)
    return RowPlan(origins, plan.source_ids, plan.weights)


def random_all_method(inputs: TransferInputs) -> RowPlan:
    """Draw every row from N(mean, variance) of the source rows: nothing of the vocabulary is kept.

    The baseline of GaMS (Vreš et al. 2024, section 4.2), whose whole matrix is random.
    """
    num_target = len(inputs.target)
    origins = np.full(num_target, Origin.RANDOM, dtype=object)
    return RowPlan(origins, np.full(num_target, -1, dtype=np.int64), sparse.csr_matrix((num_target, len(inputs.source))))


def mean_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the mean of its source pieces (FVT: Gee et al. 2022, section 3.2)."""
    ids = inputs.new_ids
    return plan_rows(inputs, ids, piece_weights(inputs.source, inputs.target, ids), fallback="random")
