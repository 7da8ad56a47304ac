"""Mean of the source pieces of a token: Fast Vocabulary Transfer (Gee et al. 2022, section 3.2).

Also the fallback of methods that have nothing for a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from conversion.embeddings.vocabularies.vocabulary import Vocabulary


def piece_weights(source: Vocabulary, texts: Sequence[bytes]) -> sparse.csr_matrix:
    """Weights of the unweighted mean of the pieces into which the source cuts each text; a piece that occurs twice counts twice.

    Returns:
        (len(texts), len(source)) float64; each row sums to 1, or has no entries where the source has no piece of the text.
    """
    pieces = [source.pieces(text) for text in texts]
    lengths = np.array([len(ids) for ids in pieces], dtype=np.int64)
    columns = np.array([i for ids in pieces for i in ids], dtype=np.int64)
    values = np.repeat(1 / np.maximum(lengths, 1), lengths)
    weights = sparse.csr_matrix((values, columns, np.concatenate([[0], np.cumsum(lengths)])), shape=(len(texts), len(source)))
    weights.sum_duplicates()
    return weights
