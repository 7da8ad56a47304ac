"""Inputs and outputs of onion's loops: settings, scanned documents, decisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.options import option, require_values

PARAGRAPHS = ("line", "blank-line", "document")
SMOOTHINGS = ("none", "between", "onion")
SCORES = ("covered-tokens", "ngrams")
BOUNDARIES = ("above", "reaches")

KEPT, NEAR_DUPLICATE, STUB, CONTAMINATED, SAME_DOCUMENT, SIMILAR_DOCUMENT = range(6)
REASONS = ("kept", "near-duplicate", "stub", "contaminated", "same-document", "similar-document")

MAX_N = 10_000
_NEVER = 1 << 62


@dataclass(frozen=True)
class OnionSettings:
    """What counts as a near-duplicate paragraph.  The defaults are those of GaMS (`onion -sm -n 9 -t 0.9`).

    Attributes:
        n: tokens in an n-gram.
        threshold: share from which on (see `boundary`) a paragraph is removed.
        boundary: `above`: removed if its share is above the threshold (onion's source); `reaches`: also if it is equal.
        score: `covered-tokens`: share of the paragraph's tokens that lie in a seen n-gram ending in it (onion); `ngrams`: share of
            the n-grams that end in it.
        paragraphs: what a paragraph is: a `line`, text between `blank-line`s, or the whole `document`.
        within_document: whether n-grams from earlier in the same document count as seen (onion: yes).
        smoothing: whether kept paragraphs go when they are short and stand beside removed ones.  `none`: no (onion's -m, which GaMS
            used); `between`: those between two removed paragraphs; `onion`: the ends of a document count as removed
            paragraphs, as in onion's source, so a whole document of at most `max_stub_tokens` tokens goes even if nothing repeats.
        max_stub_tokens: how long such a stretch of kept paragraphs may be in all.
        min_kept_tokens: a document of which something is removed goes as a whole if fewer tokens than this would be left; onion leaves them.

    Raises:
        ValueError: if a value is impossible.
    """

    n: int = option("--ngram N", "tokens in an n-gram", 9)
    threshold: float = option("--threshold SHARE", "share of repeated tokens above which a paragraph is removed", 0.9)
    boundary: str = option("--boundary", "whether a share equal to the threshold is removed too", "above", choices=BOUNDARIES)
    score: str = option("--score", "how the share is computed (default: covered-tokens, as in onion)", "covered-tokens", choices=SCORES)
    paragraphs: str = option("--paragraphs", "what counts as a paragraph", "line", choices=PARAGRAPHS)
    within_document: bool = option("--within-document", "count n-grams from earlier in the same document", True)
    smoothing: str = option(
        "--smoothing", "removal of short text between removed paragraphs (default: none; onion's -m)", "none", choices=SMOOTHINGS
    )
    max_stub_tokens: int = option(
        "--max-stub-tokens N", "maximum length of such short text in tokens (default: 20)", 20, of_command=None, least=0
    )
    min_kept_tokens: int = option(
        "--min-kept-tokens N",
        "remove a document as a whole if deduplication leaves fewer tokens of it; 0 keeps such remains, as onion does",
        0,
        of_command=9,  # as many as an n-gram has: what is shorter has nothing that could be compared
        least=0,
    )

    def __post_init__(self) -> None:
        require_values(self)
        if not 1 <= self.n <= MAX_N:
            raise ValueError(f"--ngram is {self.n}; expected 1 to {MAX_N:,} tokens")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"--threshold is {self.threshold}; expected a share from 0 to 1")

    @property
    def newlines(self) -> int:
        """Line feeds between two tokens that end a paragraph."""
        return {"line": 1, "blank-line": 2, "document": _NEVER}[self.paragraphs]


@dataclass(frozen=True)
class Scan:
    """Documents as hashes of their n-grams.  A paragraph has at least one token; a document may have no paragraph.

    Attributes:
        hashes: (num_tokens,) of the n-gram that ends at each token; 0 for the first n - 1 tokens of a document.
        paragraph_token: (num_paragraphs,) first token of each.
        paragraph_byte: (num_paragraphs,) first byte of the line of that token, in the documents one behind the other; the first
            paragraph of a document begins where the document does.
        paragraph_hash: (num_paragraphs,) of all tokens of each.
        document_paragraph: (num_documents + 1,) first paragraph of each; the last number is that of all paragraphs.
    """

    hashes: NDArray[np.uint64]
    paragraph_token: NDArray[np.int64]
    paragraph_byte: NDArray[np.int64]
    paragraph_hash: NDArray[np.uint64]
    document_paragraph: NDArray[np.int64]

    @property
    def num_documents(self) -> int:
        """Documents, those without a token included."""
        return len(self.document_paragraph) - 1

    @property
    def num_paragraphs(self) -> int:
        """Paragraphs, all of which have tokens."""
        return len(self.paragraph_token)

    @property
    def paragraph_tokens(self) -> NDArray[np.int64]:
        """(num_paragraphs,) number of tokens of each."""
        return np.diff(self.paragraph_token, append=len(self.hashes))


@dataclass(frozen=True)
class Decisions:
    """What became of each paragraph of a scan; all arrays (num_paragraphs,).

    Attributes:
        verdict: uint8, index into `REASONS`; what is not 0 before the decision stays and its n-grams are not stored.
        covered: uint32, tokens that lie in a seen n-gram.
        repeated: uint32, seen n-grams that end in the paragraph.
        possible: uint32, n-grams that end in it.
        source: uint32, ordinal of the paragraph that first brought most of the seen n-grams (the earliest of equals); 0 where none was.
        source_ngrams: uint32, how many it brought.
    """

    verdict: NDArray[np.uint8]
    covered: NDArray[np.uint32]
    repeated: NDArray[np.uint32]
    possible: NDArray[np.uint32]
    source: NDArray[np.uint32]
    source_ngrams: NDArray[np.uint32]

    @classmethod
    def empty(cls, num_paragraphs: int) -> Decisions:
        """Room for decisions, all paragraphs kept."""
        return cls(np.zeros(num_paragraphs, np.uint8), *(np.zeros(num_paragraphs, np.uint32) for _ in range(5)))


def finish(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix all bits of each value, of any shape; never 0, which says that there is no n-gram."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return np.where(values == 0, np.uint64(1), values)
