"""Mean of the source pieces of a token: Fast Vocabulary Transfer (Gee et al. 2022, section 3.2).

Also the fallback of methods that have nothing for a token.
"""

from __future__ import annotations

from array import array

import numpy as np
from scipy import sparse

from conversion.embeddings.vocabularies.vocabulary import Vocabulary


def piece_weights(source: Vocabulary, target: Vocabulary, ids: np.ndarray) -> sparse.csr_matrix:
    """Weights of the unweighted mean of the pieces into which the source cuts target tokens; a piece that occurs twice counts twice.

    Args:
        ids: (num_ids,) of the target; a token that stands for no bytes has no pieces.

    Returns:
        (num_ids, len(source)) float64; each row sums to 1, or has no entries where the source has no piece of the token.
    """
    columns, ends = array("i"), array("q", [0])  # numbers of 4 and 8 bytes: as lists they would be most of what a transfer holds
    for target_id in ids.tolist():
        columns.extend(source.pieces(target.token_bytes[target_id] or b""))
        ends.append(len(columns))
    starts = np.array(ends, np.int64)
    lengths = np.diff(starts)
    values = np.repeat(1 / np.maximum(lengths, 1), lengths)
    weights = sparse.csr_matrix((values, np.array(columns, np.int32), starts), shape=(len(ids), len(source)))
    weights.sum_duplicates()
    return weights
