"""Trans-tokenization: a new token is the mean of the source tokens that it aligns with in translations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from conversion.embeddings.methods.alignment_model import align_words
from conversion.embeddings.methods.merge import byte_ends
from conversion.embeddings.methods.method import TransferInputs, plan_rows
from conversion.embeddings.methods.row_plan import RowPlan
from conversion.embeddings.spaces.word_vectors import WORD
from conversion.embeddings.vocabularies.vocabulary import Vocabulary

_MOST_COUNT = 10  # the paper leaves out pairs of words that are aligned less often
_FEWEST_SHARE = 0.01  # of a word's alignments: less is noise


@dataclass(frozen=True)
class _Words:
    """The words of sentences, and the tokens of which they are made there.

    Attributes:
        sentences: ids of the words of each sentence; the same word in small and capital letters is one.
        spellings: (num_places,) for all sentences behind each other, which of `pieces` the word is made of.
        pieces: token ids; empty where a token began in the word and ended in the next.
    """

    sentences: list[np.ndarray]
    spellings: np.ndarray
    pieces: list[tuple[int, ...]]


def trans_tokenization_method(inputs: TransferInputs) -> RowPlan:
    """Copy what both vocabularies have; a new token is the mean of the source tokens with which words of translations align.

    Trans-tokenization (Remy et al. 2024, section 3): words of parallel sentences are aligned; how often two words are aligned is
    shared out over their tokens, half of it evenly and half in order.  Unlike the paper, shared tokens keep their rows, and tokens
    that are not in the text get the fallback in place of those of tokens that they are part of.  The published code counts a shared
    token as one more translation of itself.

    Raises:
        ValueError: if hardly any words align.
    """
    if not inputs.as_published:
        return plan_rows(inputs, inputs.new_ids, translation_weights(inputs)[inputs.new_ids])
    shared = inputs.shared_ids
    same = sparse.csr_matrix(
        (np.ones(len(shared)), (shared, inputs.overlap.source_ids[shared])), shape=(len(inputs.target), len(inputs.source))
    )
    ids = np.flatnonzero(inputs.target.is_text)
    return plan_rows(inputs.without_copies(), ids, _shares(translation_counts(inputs) + same)[ids])


def translation_weights(inputs: TransferInputs) -> sparse.csr_matrix:
    """(num_target_tokens, num_source_tokens) how much of each target token's translations each source token is; rows sum to 1 or 0."""
    return _shares(translation_counts(inputs))


def translation_counts(inputs: TransferInputs) -> sparse.csr_matrix:
    """(num_target_tokens, num_source_tokens) how often each source token stands for each target token in translations.

    Raises:
        ValueError: if hardly any words align.
    """
    assert inputs.parallel is not None
    source, target = _words_of_pairs(inputs)
    aligned = align_words(source.sentences, target.sentences)
    keys = target.spellings[aligned.target_places] * len(source.pieces) + source.spellings[aligned.source_places]
    pairs, pair_of_cell = np.unique(keys, return_inverse=True)
    counts = np.bincount(pair_of_cell, aligned.probabilities, minlength=len(pairs))
    target_spellings, source_spellings = np.divmod(pairs, max(len(source.pieces), 1))
    least = max(1.0, min(_MOST_COUNT, len(source.sentences) / 10_000))
    totals = np.bincount(target_spellings, counts, minlength=len(target.pieces))
    is_kept = (counts >= least) & (counts >= _FEWEST_SHARE * totals[target_spellings])
    if not is_kept.any():
        raise ValueError(
            f"the parallel text has {len(source.sentences)} pairs of sentences, in which no two words align at least {least:g} times;"
            " give more --parallel text, with the source's language first"
        )
    spread: defaultdict[tuple[int, int], float] = defaultdict(float)
    for place in np.flatnonzero(is_kept):
        add_shares(spread, target.pieces[target_spellings[place]], source.pieces[source_spellings[place]], counts[place])
    rows, columns = np.array(list(spread)).T if spread else np.empty((2, 0), dtype=np.int64)
    return sparse.csr_matrix((list(spread.values()), (rows, columns)), shape=(len(inputs.target), len(inputs.source)))


def _shares(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Rows divided by their sums."""
    sums = np.asarray(counts.sum(axis=1)).ravel()
    shares = sparse.csr_matrix(sparse.diags(1 / np.where(sums > 0, sums, 1)) @ counts)
    shares.sort_indices()
    return shares


def add_shares(total: defaultdict[tuple[int, int], float], target: tuple[int, ...], source: tuple[int, ...], count: float) -> None:
    """Share a count of two aligned words out over their tokens: half evenly, half by how much of the word both tokens are at.

    Every target token gets the whole count, one half over all source tokens alike and one over those in the same part of the word.
    """
    for i, target_id in enumerate(target):
        begin, end = i / len(target), (i + 1) / len(target)
        for j, source_id in enumerate(source):
            common = max(0.0, min(end, (j + 1) / len(source)) - max(begin, j / len(source)))
            total[target_id, source_id] += count * (0.5 / len(source) + 0.5 * common * len(target))


def _words_of_pairs(inputs: TransferInputs) -> tuple[_Words, _Words]:
    """The words of both sides of the sentence pairs."""
    assert inputs.parallel is not None
    pairs = list(inputs.parallel)
    source = _cut(inputs.source, [source for source, _ in pairs], inputs.tokenize_source)
    target = _cut(inputs.target, [target for _, target in pairs], inputs.tokenize)
    return _collect(source), _collect(target)


def _cut(
    vocabulary: Vocabulary, texts: list[str], tokenize: Callable[[list[str]], list[list[int]]]
) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Of each text its words with their tokens."""
    for text, ids in zip(texts, tokenize(texts)):
        words = list(WORD.finditer(text))
        ends = byte_ends(vocabulary, ids, text)
        if ends is None:  # a normalizer changed the text, or it has unknown characters: each word for itself
            spaces = (" " if word.start() == 0 or text[word.start() - 1].isspace() else "" for word in words)
            pieces = [vocabulary.pieces((space + word.group()).encode()) for space, word in zip(spaces, words)]
        else:
            # A token belongs to the word that its last byte is in, with the space before that word.
            byte_of = np.cumsum([0, *(len(char.encode()) for char in text)])
            places = np.searchsorted(byte_of[[word.end() for word in words]], ends - 1, side="right")
            pieces = [[] for _ in range(len(words) + 1)]
            for token_id, place in zip(ids, places):
                pieces[place].append(token_id)
        yield [(word.group().lower(), tuple(piece)) for word, piece in zip(words, pieces)]


def _collect(sentences: Iterable[list[tuple[str, tuple[int, ...]]]]) -> _Words:
    words: dict[str, int] = {}
    spellings: dict[tuple[int, ...], int] = {}
    ids, places = [], []
    for sentence in sentences:
        ids.append(np.array([words.setdefault(word, len(words)) for word, _ in sentence], dtype=np.int64))
        places += [spellings.setdefault(pieces, len(spellings)) for _, pieces in sentence]
    return _Words(ids, np.array(places, dtype=np.int64), list(spellings))
