"""Vectors of the target's tokens, trained with fastText on text that the target tokenizer has segmented.

gensim's fastText is a wheel, needs no compiler, and with one thread gives the same bits each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from conversion.embeddings.methods.method import TransferInputs
from conversion.embeddings.spaces.fasttext import MAX_SENTENCE_TOKENS, fit_fasttext
from conversion.embeddings.spaces.token_vectors import TokenVectors
from data_prep.reading.documents import batches

_BATCH_CHARACTERS = 1 << 20


def train_token_vectors(inputs: TransferInputs) -> TokenVectors:
    """Train fastText (CBOW) on the text.

    The tokens go by their keys, so neither their spelling nor their ids matter; one thread and the seed make it repeatable.

    Raises:
        ValueError: if too little of the vocabulary occurs often enough.
    """
    sentences = _tokenized(inputs)
    counts: Counter[int] = Counter()
    for ids in sentences:
        counts.update(ids.tolist())
    keys = tuple(inputs.target.keys)
    size, epochs, min_count = inputs.vectors.for_text(counts.total())
    kept = [i for i, count in counts.items() if count >= min_count]
    if len(kept) < 2:
        raise ValueError(
            f"the text has {counts.total()} tokens, of which {len(kept)} are seen at least {min_count} times:"
            " too little to train vectors; give more --text or a lower --vector-min-count"
        )
    corpus = _Corpus(sentences, keys)
    names = [keys[i] for i in kept]
    model = fit_fasttext(corpus, counts.total(), names, size=size, epochs=epochs, min_count=min_count, seed=inputs.seed, skip_gram=False)
    ids = np.array(sorted(kept), dtype=np.int64)
    places = model.wv.key_to_index
    return TokenVectors.of(model.wv.vectors[[places[keys[i]] for i in ids]], ids, len(inputs.target))


class _Corpus:
    """Sentences of token keys, made anew for each epoch: gensim wants strings, and ids take a twentieth of the memory."""

    def __init__(self, sentences: list[np.ndarray], keys: tuple[str, ...]) -> None:
        self._sentences, self._keys = sentences, keys

    def __iter__(self) -> Iterator[list[str]]:
        for ids in self._sentences:
            yield [self._keys[i] for i in ids]


def _tokenized(inputs: TransferInputs) -> list[np.ndarray]:
    assert inputs.text is not None
    return [
        np.array(ids[start : start + MAX_SENTENCE_TOKENS], dtype=np.int32)
        for texts in batches(inputs.text, _BATCH_CHARACTERS)
        for ids in inputs.tokenize(texts)
        for start in range(0, len(ids), MAX_SENTENCE_TOKENS)
    ]
