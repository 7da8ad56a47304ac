"""fastText (Bojanowski et al. 2017) trained reproducibly on words or tokens, by gensim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gensim.models.fasttext import FastText

MAX_SENTENCE_TOKENS = 10_000  # gensim drops what is longer
# fastText's own: character n-grams, learning rate, sampling of frequent tokens; its table of n-grams is at most this long.
_NGRAM_LENGTHS = (3, 6)
_LEARNING_RATE = 0.05
_SAMPLE = 1e-4
_ALWAYS_KEPT = 100
_MAX_BUCKETS = 2_000_000
_NEGATIVE = 10  # as FOCUS


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


def _num_buckets(words: list[str]) -> int:
    """As many places as there are n-grams: fastText's fixed two million would take gigabytes for a small vocabulary."""
    low, high = _NGRAM_LENGTHS
    ngrams: set[str] = set()
    for word in (f"<{word}>" for word in words):
        for length in range(low, high + 1):
            ngrams.update(word[i : i + length] for i in range(len(word) - length + 1))
    return max(1, min(len(ngrams), _MAX_BUCKETS))
