"""Documents that are much alike as a whole: MinHash, by the package datasketch (MIT)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_prep.deduplication.onion_types import SIMILAR_DOCUMENT, Decisions, Scan

_PERMUTATIONS = 128
_SCHEME = "affine32"  # of datasketch 2: hashes of 32 bits


class SimilarDocuments:
    """Documents that are like an earlier kept one, by datasketch's index of MinHash signatures; candidates are compared in full.

    Args:
        share: Jaccard similarity of sets of n-grams from which on a document goes.
    """

    def __init__(self, share: float) -> None:
        from datasketch import MinHashLSH

        self._share = share
        self._index = MinHashLSH(threshold=share, num_perm=_PERMUTATIONS)
        self._signatures: dict[int, NDArray[np.uint32]] = {}

    def mark(self, scan: Scan, signatures: NDArray[np.uint32] | None, ordinal: int, decisions: Decisions, fixed: NDArray[np.int64]) -> None:
        """Mark the documents of a scan that are like an earlier one, and remember the others; documents without n-grams are left alone."""
        from datasketch import MinHash

        assert signatures is not None
        for document, signature in enumerate(signatures):
            first, last = scan.document_paragraph[document : document + 2].tolist()
            if not signature.any() or decisions.verdict[first:last].any():
                continue
            minhash = MinHash(num_perm=_PERMUTATIONS, hashvalues=signature.astype(np.uint64), scheme=_SCHEME)
            like = [
                key
                for key in self._index.query(minhash)
                if np.count_nonzero(self._signatures[key] == signature) >= self._share * _PERMUTATIONS
            ]
            if like:
                decisions.verdict[first:last] = SIMILAR_DOCUMENT
                fixed[first:last] = min(like)
            else:
                self._index.insert(ordinal + first, minhash)
                self._signatures[ordinal + first] = signature


def minhash_signatures(scan: Scan) -> NDArray[np.uint32]:
    """(num_documents, 128) MinHash of the n-grams of each document; zeros where it has none."""
    from datasketch import MinHash

    token = np.append(scan.paragraph_token, len(scan.hashes))
    result = np.zeros((scan.num_documents, _PERMUTATIONS), np.uint32)
    for document, (first, last) in enumerate(zip(scan.document_paragraph, scan.document_paragraph[1:])):
        hashes = scan.hashes[token[first] : token[last]]
        hashes = np.unique(hashes[hashes != 0]) & np.uint64(0xFFFFFFFF)
        minhash = MinHash(num_perm=_PERMUTATIONS, hashfunc=int, scheme=_SCHEME)
        for start in range(0, len(hashes), 4096):  # a row of 128 for each of these is in memory
            minhash.update_batch(hashes[start : start + 4096].tolist())
        if len(hashes):
            result[document] = minhash.hashvalues
    return result
