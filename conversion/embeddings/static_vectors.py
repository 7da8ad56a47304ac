"""Vectors of the target's tokens, trained with fastText on text that the target tokenizer has cut.

gensim's fastText is a wheel, needs no compiler, and with one thread gives the same bits each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from conversion.embeddings.method import TransferInputs
from conversion.embeddings.token_vectors import TokenVectors
from conversion.embeddings.word_vectors import MAX_SENTENCE_TOKENS
from data_prep.reading.documents import batches

if TYPE_CHECKING:
    from gensim.models.fasttext import FastText

# fastText's own: character n-grams, learning rate, sampling of frequent tokens; its table of n-grams is at most this long.
_NGRAM_LENGTHS = (3, 6)
_LEARNING_RATE = 0.05
_SAMPLE = 1e-4
_ALWAYS_KEPT = 100
_MAX_BUCKETS = 2_000_000
_NEGATIVE = 10  # as FOCUS
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
    keys = inputs.target.keys
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


def fit_fasttext(
    sentences: Iterable[list[str]], num_words: int, kept: list[str], *, size: int, epochs: int, min_count: int, seed: int, skip_gram: bool
) -> FastText:
    """Train fastText with one thread, which makes it repeatable.

    Args:
        sentences: can be read again and again.
        num_words: of all sentences.
        kept: the words that occur at least `min_count` times.
    """
    from gensim.models.fasttext import FastText

    model = FastText(
        sg=int(skip_gram),
        vector_size=size,
        epochs=epochs,
        min_count=min_count,
        alpha=_LEARNING_RATE,
        # In a small text every word is frequent in share; those seen rarely in number must not be skipped.
        sample=max(_SAMPLE, _ALWAYS_KEPT / num_words),
        negative=_NEGATIVE,
        min_n=_NGRAM_LENGTHS[0],
        max_n=_NGRAM_LENGTHS[1],
        bucket=_num_buckets(kept),
        seed=seed,
        workers=1,
    )
    model.build_vocab(sentences)
    model.train(sentences, total_examples=model.corpus_count, epochs=model.epochs)
    return model


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


def _num_buckets(words: list[str]) -> int:
    """As many places as there are n-grams: fastText's fixed two million would take gigabytes for a small vocabulary."""
    low, high = _NGRAM_LENGTHS
    ngrams: set[str] = set()
    for word in (f"<{word}>" for word in words):
        for length in range(low, high + 1):
            ngrams.update(word[i : i + length] for i in range(len(word) - length + 1))
    return max(1, min(len(ngrams), _MAX_BUCKETS))
