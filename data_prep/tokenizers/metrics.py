"""Tokenizer metrics: fertility, tokens per byte and per sentence, whole-word tokens, the best vocabulary size.

The first three are those by which GaMS chose its vocabulary (Vreš et al. 2024, section 4.1): the share of words in two or more pieces, the
share of the vocabulary that a lexicon knows (in the paper of what a text uses of it: its footnote 1), the histogram of words by pieces.  Fertility is tokens per word (SAVA: Moroni et al. 2025, table 2).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import regex

from data_prep.megatron.word_encoder import plain
from data_prep.reading.documents import batches
from data_prep.tokenizers.files import rows_needed
from data_prep.tokenizers.token_bytes import BYTE_TOKEN, bytes_of, spelling_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

MOST_PIECES = 10  # words of so many pieces and more are one column
WORDS = ("whitespace", "letters")
_LETTERS = regex.compile(r"[\p{L}\p{M}]+(?:['’][\p{L}\p{M}]+)*")
_BATCH_CHARACTERS = 1 << 20
# What stands before a word when it is tokenized, so that it has the space that it has in a text.
_BEFORE = "a"


@dataclass
class TextFigures:
    """One tokenizer on one text.

    Attributes:
        histogram: how many words have 1, 2, ... 9, and 10 or more pieces.
        word_tokens: pieces of all words, each counted as it stands after a space.
        num_tokens: of the whole documents, without special tokens.
        unknown_tokens: of these the unknown token.
        byte_tokens: of these the ones that are not a whole character: `<0x0A>`, or the middle of a character in a byte-level vocabulary.
        characters, text_bytes: of the documents.
        used_tokens: different tokens that the documents have, special ones left out.
        lexicon_tokens: of these the ones that a lexicon knows; None without a lexicon.
    """

    histogram: list[int] = field(default_factory=lambda: [0] * MOST_PIECES)
    word_tokens: int = 0
    num_tokens: int = 0
    unknown_tokens: int = 0
    byte_tokens: int = 0
    characters: int = 0
    text_bytes: int = 0
    used_tokens: int = 0
    lexicon_tokens: int | None = None

    @property
    def lexicon_share(self) -> float | None:
        """Share of the tokens that the text uses which are words of the lexicon."""
        return None if self.lexicon_tokens is None else self.lexicon_tokens / max(self.used_tokens, 1)

    @property
    def num_words(self) -> int:
        """Words of the text."""
        return sum(self.histogram)

    @property
    def fertility(self) -> float:
        """Tokens per word."""
        return self.word_tokens / max(self.num_words, 1)

    @property
    def split_share(self) -> float:
        """Share of the words in two or more pieces."""
        return 1 - self.histogram[0] / max(self.num_words, 1)

    @property
    def characters_per_token(self) -> float:
        """Characters of text for each token."""
        return self.characters / max(self.num_tokens, 1)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of UTF-8 for each token."""
        return self.text_bytes / max(self.num_tokens, 1)

    @property
    def unknown_share(self) -> float:
        """Share of unknown tokens among the tokens."""
        return self.unknown_tokens / max(self.num_tokens, 1)

    @property
    def byte_share(self) -> float:
        """Share of the tokens that are not a whole character."""
        return self.byte_tokens / max(self.num_tokens, 1)


def split_words(text: str, words: str) -> list[str]:
    """The words of a text: what stands between white space, or runs of letters (apostrophes inside included).

    Args:
        words: one of `WORDS`.
    """
    return text.split() if words == "whitespace" else _LETTERS.findall(text)


def word_pieces(tokenizer: Tokenizer, words: Sequence[str]) -> list[int]:
    """Pieces of each word, each tokenized by itself after a space."""
    before = len(tokenizer.encode(_BEFORE, add_special_tokens=False).ids)
    counts = []
    for batch in batches((f"{_BEFORE} {word}" for word in words), _BATCH_CHARACTERS):
        counts += [len(encoding.ids) - before for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
    return counts


def text_figures(
    tokenizer: PreTrainedTokenizerFast, documents: Iterable[str], *, words: str = "whitespace", lexicon: frozenset[str] | None = None
) -> TextFigures:
    """Measure a tokenizer on a text.

    Args:
        words: what a word is, one of `WORDS`.
        lexicon: words, as `read_lexicon` gives.
    """
    import numpy as np

    backend = plain(tokenizer.backend_tokenizer)
    vocab_size = rows_needed(tokenizer)
    is_byte = np.zeros(vocab_size, dtype=bool)
    is_byte[list(parts_of_characters(tokenizer))] = True
    is_used = np.zeros(vocab_size, dtype=bool)
    figures = TextFigures()
    occurrences: Counter[str] = Counter()
    for batch in batches(documents, _BATCH_CHARACTERS):
        for text, encoding in zip(batch, backend.encode_batch_fast(batch, add_special_tokens=False)):
            occurrences.update(split_words(text, words))
            ids = np.array(encoding.ids, dtype=np.int64)
            is_used[ids] = True
            figures.num_tokens += len(ids)
            figures.byte_tokens += int(is_byte[ids].sum())
            if tokenizer.unk_token_id is not None:
                figures.unknown_tokens += int((ids == tokenizer.unk_token_id).sum())
            figures.characters += len(text)
            figures.text_bytes += len(text.encode())
    used = {int(i) for i in np.flatnonzero(is_used)} - set(tokenizer.all_special_ids)
    figures.used_tokens = len(used)
    if lexicon is not None:
        figures.lexicon_tokens = len(used & words_among(tokenizer, lexicon))
    for pieces, count in zip(word_pieces(backend, list(occurrences)), occurrences.values()):
        figures.word_tokens += pieces * count
        # A word of no piece (a control character that is dropped) is not a split word.
        figures.histogram[min(max(pieces, 1), MOST_PIECES) - 1] += count
    return figures


def parts_of_characters(tokenizer: PreTrainedTokenizerFast) -> set[int]:
    """Ids of the tokens that are not whole characters: bytes, and in a byte-level vocabulary any sequence of them that is not text."""
    spelling = spelling_of(json.loads(tokenizer.backend_tokenizer.to_str()))
    specials = set(tokenizer.all_special_ids)
    found = set()
    for token, token_id in tokenizer.get_vocab().items():
        if token_id in specials:
            continue
        if spelling.form == "byte-level":
            try:
                bytes_of(token, spelling).decode()
            except UnicodeDecodeError:
                found.add(token_id)
        elif spelling.byte_tokens and BYTE_TOKEN.fullmatch(token):
            found.add(token_id)
    return found


def lexicon_share(tokenizer: PreTrainedTokenizerFast, lexicon: frozenset[str]) -> float:
    """Share of the vocabulary that are words of the lexicon."""
    return len(words_among(tokenizer, lexicon)) / len(tokenizer.get_vocab())


def words_among(tokenizer: PreTrainedTokenizerFast, lexicon: frozenset[str]) -> set[int]:
    """Ids of the tokens whose text, lower-cased and without the space before it, is a word of the lexicon; special tokens are none."""
    spelling = spelling_of(json.loads(tokenizer.backend_tokenizer.to_str()))
    specials = set(tokenizer.all_special_tokens)
    texts = ((i, bytes_of(token, spelling).decode(errors="replace")) for token, i in tokenizer.get_vocab().items() if token not in specials)
    return {i for i, text in texts if text.strip().lower() in lexicon}


def sentence_tokens(tokenizer: PreTrainedTokenizerFast, sentences: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Mean tokens of a sentence in each language.

    Args:
        sentences: language -> its sentences, the same ones in all.
    """
    backend = plain(tokenizer.backend_tokenizer)
    means = {}
    for language, texts in sentences.items():
        encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        means[language] = sum(len(encoding.ids) for encoding in encodings) / len(encodings)
    return means


@dataclass(frozen=True)
class SizeAdvice:
    """Which of some sizes of one kind of tokenizer to take.

    Attributes:
        sizes: vocabulary sizes, ascending.
        fertility: tokens per word at each.
        distances: how far each lies below the line from the first to the last, both axes scaled to 0..1.
        recommended: the size that lies furthest below.
    """

    sizes: tuple[int, ...]
    fertility: tuple[float, ...]
    distances: tuple[float, ...]
    recommended: int


def advise_size(fertility: Mapping[int, float]) -> SizeAdvice | None:
    """The knee of tokens per word over vocabulary size: where a further row of the embedding buys less than the average row did.

    The knee is the point furthest below the chord (Satopää et al. 2011, for points as few as these without smoothing).  Rows cost
    parameters one by one, so sizes count as they are, not their logarithms.

    Returns:
        None for fewer than three sizes, or where no size lies below the chord.
    """
    sizes = tuple(sorted(fertility))
    if len(sizes) < 3:
        return None
    values = tuple(fertility[size] for size in sizes)
    fall = values[0] - values[-1]
    if fall <= 0:
        return None
    distances = tuple(1 - (size - sizes[0]) / (sizes[-1] - sizes[0]) - (value - values[-1]) / fall for size, value in zip(sizes, values))
    best = max(distances)
    if best <= 0:
        return None
    return SizeAdvice(sizes, values, distances, sizes[distances.index(best)])
