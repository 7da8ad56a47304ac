"""Token ids equal to the tokenizer library's and several times faster: each word is encoded once, then read from a bounded cache.

`data_prep.megatron.word_rules` says which tokenizers allow it and why that is exact.  The loops are C (word_encoder.c).  Everything else is the
library's `encode_batch_fast`.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common import native
from common.native import address
from data_prep.megatron.word_rules import BY_PAIRS, DIGITS, IS_DIGIT, Merges, NotExactError, WordRules, categories, digits, word_rules

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SOURCE = Path(__file__).with_name("word_encoder.c")
# A generation of the cache holds 393,216 words (3/4 of its slots of 16 bytes) in at most 24 MiB; there are two of them.
NUM_SLOTS = 1 << 19
ARENA_SIZE = 6 << 20  # in 4 bytes

_int64 = ctypes.c_int64
_NO_MERGES = Merges(np.zeros((0, 3), np.int32), np.zeros(0, np.int32))


class LibraryEncoder:
    """The tokenizer library itself.

    Attributes:
        reason: why it is used; for people.
    """

    def __init__(self, tokenizer: Tokenizer, reason: str = "") -> None:
        self._tokenizer = plain(tokenizer)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return LibraryEncoder, (self._tokenizer, self.reason)

    def for_threads(self, number: int) -> list[LibraryEncoder]:
        """Itself: it has threads of its own."""
        return [self]

    def encode(self, texts: Sequence[str], behind: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(num_tokens,) ids of texts back to back, each with the token `behind` it, and (len(texts),) how many, that token included."""
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.array([len(row) + 1 for row in rows], dtype=np.int64)
        return np.fromiter(chain.from_iterable((*row, behind) for row in rows), dtype=np.int32, count=lengths.sum()), lengths


class NativeRules:
    """The rules of a tokenizer, in the C library's memory and in arrays that it reads where they are."""

    def __init__(self, rules: WordRules, library: ctypes.CDLL) -> None:
        self.rules, self.library = rules, library
        library.word_rules_new.restype = library.word_encoder_new.restype = ctypes.c_void_p
        merges = rules.merges or _NO_MERGES
        self._arrays = (
            _categories(rules.cutting),
            np.ascontiguousarray(rules.cuts),
            merges.symbols,
            merges.byte_ids,
        )
        offsets = np.zeros(len(merges.whole) + 1, dtype=np.int64)
        np.cumsum([len(word) for word in merges.whole], out=offsets[1:])
        whole_ids = np.array(list(merges.whole.values()), dtype=np.int32)
        self.pointer = ctypes.c_void_p(
            library.word_rules_new(
                rules.cutting, rules.max_digits, *map(address, self._arrays), merges.unknown, int(merges.fuse_unknown),
                int(rules.merges is not None), address(merges.triples), _int64(len(merges.triples)),
                b"".join(merges.whole), address(offsets), address(whole_ids), _int64(len(merges.whole)),
            )
        )  # fmt: skip
        if not self.pointer:
            raise MemoryError("no memory for the merges of the tokenizer")

    def __del__(self) -> None:
        self.library.word_rules_free(self.pointer)


class WordEncoder:
    """Words from a cache; its memory is twice that of a generation.

    Args:
        num_slots: a power of two; a generation holds 3/4 as many words.
        arena_size: for the bytes and ids of a generation's words, in 4 bytes.
    """

    def __init__(
        self, tokenizer: Tokenizer, native_rules: NativeRules, *, num_slots: int = NUM_SLOTS, arena_size: int = ARENA_SIZE
    ) -> None:
        self._tokenizer, self._native_rules = tokenizer, native_rules
        self._rules, self._library = native_rules.rules, native_rules.library
        self._whole_texts = LibraryEncoder(tokenizer)
        # Of tokens that begin at one place the longest, as the library has it: the first alternative that fits is taken.
        longest_first = sorted(self._rules.added_tokens, key=len, reverse=True) if self._rules.are_cut_here else []
        self._added = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        self._encoder = ctypes.c_void_p(self._library.word_encoder_new(native_rules.pointer, _int64(num_slots), _int64(arena_size)))
        if not self._encoder:
            raise MemoryError("no memory for the cache of words")

    def __del__(self) -> None:
        self._library.word_encoder_free(self._encoder)

    def __reduce__(self) -> tuple[Any, ...]:
        return word_encoder, (self._tokenizer,)

    def for_threads(self, number: int) -> list[WordEncoder]:
        """So many encoders, at least this one, with caches of their own."""
        return [self, *(WordEncoder(self._tokenizer, self._native_rules) for _ in range(number - 1))]

    @property
    def reason(self) -> str:
        """Why the library is not used: nothing."""
        return ""

    @property
    def counts(self) -> tuple[int, int]:
        """Words found in the cache and words that were not."""
        counts = np.zeros(2, dtype=np.int64)
        self._library.word_counts(self._encoder, address(counts))
        return int(counts[0]), int(counts[1])

    def encode(self, texts: Sequence[str], behind: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """See `LibraryEncoder.encode`."""
        added = self._rules.added_tokens
        if self._added is not None:
            return self._encode_between(texts, behind, self._added)
        if not added or not any(token in text for text in texts for token in added):
            return self._encode(texts, behind)
        parts = [(self._whole_texts.encode if any(token in text for token in added) else self._encode)([text], behind) for text in texts]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])

    def _encode_between(self, texts: Sequence[str], behind: int, added: re.Pattern[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """What lies between added tokens is a text for itself, and the token stands behind it."""
        parts: list[str] = []
        ends: list[int] = []
        num_parts: list[int] = []
        for text in texts:
            between = added.split(text)
            parts += between[::2]
            ends += [self._rules.added_tokens[token] for token in between[1::2]]
            ends.append(behind)
            num_parts.append(len(between) // 2 + 1)
        ids, lengths = self._encode(parts, behind)
        ids[np.cumsum(lengths) - 1] = ends
        return ids, np.add.reduceat(lengths, np.cumsum(num_parts) - num_parts) if texts else lengths

    def _encode(self, texts: Sequence[str], behind: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        documents = [self._rules.prepare(text).encode() for text in texts]
        text = b"".join(documents)
        offsets = np.zeros(len(documents) + 1, dtype=np.int64)
        np.cumsum([len(document) for document in documents], out=offsets[1:])
        ids = np.empty(len(text) + len(documents), dtype=np.int32)
        lengths = np.empty(len(documents), dtype=np.int64)
        state, word = np.zeros(4, dtype=np.int64), np.zeros(2, dtype=np.int64)
        arguments = (
            self._encoder,
            text,
            address(offsets),
            _int64(len(documents)),
            behind,
            address(state),
            address(word),
            address(ids),
            address(lengths),
        )
        while result := self._library.word_encode(*arguments):
            if result < 0:
                raise MemoryError("no memory for a long word")
            self._ask_model(text[word[0] : word[1]], ids, state)
        return ids[: state[2]], lengths

    def _ask_model(self, word: bytes, ids: NDArray[np.int32], state: NDArray[np.int64]) -> None:
        found = np.array([token.id for token in self._tokenizer.model.tokenize(self._rules.word_of(word))], dtype=np.int32)
        ids[state[2] : state[2] + len(found)] = found
        state[2] += len(found)
        self._library.word_remember(self._encoder, word, _int64(len(word)), address(found), _int64(len(found)))


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, set to give all of a text's own tokens and no others: "</s>" in a text is four characters, nothing is cut off."""
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def word_encoder(tokenizer: Tokenizer) -> WordEncoder | LibraryEncoder:
    """The fastest exact encoder of a tokenizer.

    Raises:
        ValueError: if its tokens are not the same each time, so that none is exact.
    """
    plain(tokenizer)
    if dropout := getattr(tokenizer.model, "dropout", None):
        raise ValueError(
            f"the tokenizer leaves out merges at random (dropout {dropout:g}), so that a text has other tokens each time;"
            ' set "dropout" to null in its tokenizer.json'
        )
    try:
        rules = word_rules(tokenizer)
    except NotExactError as error:
        return LibraryEncoder(tokenizer, str(error))
    return WordEncoder(tokenizer, NativeRules(rules, native.load(SOURCE)))


def _categories(cutting: int) -> NDArray[np.uint8]:
    if cutting == BY_PAIRS:
        return np.zeros(0, np.uint8)
    return categories() | digits() * np.uint8(IS_DIGIT) if cutting == DIGITS else categories()


def tell_if_slow(encoder: WordEncoder | LibraryEncoder, tokenizer: str) -> str:
    """Why a tokenizer's words are not kept, empty where they are; it is also said on stderr."""
    if encoder.reason:
        print(
            f"note: {tokenizer} is used as the library has it, several times slower than by words and with the same ids: {encoder.reason}",
            file=sys.stderr,
        )
    return encoder.reason
