"""Continued BPE: the merges that training learns next on another text, starting from an existing tokenizer's merges.

After Purason et al. (2025, arXiv 2512.03989).  An auxiliary tokenizer that begins at single bytes learns tokens by another way than the old one cuts
text, so that some can only be reached over steps, and others never occur in any text.  Here the text is cut by the old tokenizer first, and
the pair that is most frequent in what is left becomes a token, again and again: each stood in a text when it was made.
"""

from __future__ import annotations

import copy
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any

from data_prep.tokenizers.auxiliary import word_cutter
from data_prep.tokenizers.extension import Extension, known_bytes, merge_pairs, name_added_tokens, next_id
from data_prep.tokenizers.token_bytes import bytes_of, spelling_of

_FEWEST_COUNTS = 2
_UNKNOWN = "\0unknown"  # before a letter that the old tokenizer has no token for


def continue_merges(description: Mapping[str, Any], sentences: Iterable[str], num_new: int, *, excluded: Collection[str] = ()) -> Extension:
    """Learn so many merges more, one new token each, and append them.

    A letter that the tokenizer lacks becomes a token when it is as frequent as a pair.  A pair is skipped that would make a token which the tokenizer has already and comes to by other merges: with it text would be cut
    otherwise without any new token.  Of equally frequent pairs the first in the order of their spelling is taken, so that the same sentences
    give the same tokens.

    Args:
        description: content of a tokenizer.json that names every added token.
        excluded: tokens that are not made.

    Raises:
        ValueError: if the tokenizer is not a BPE, or if the sentences have no more pairs that occur twice.
    """
    if description["model"]["type"] != "BPE":
        raise ValueError(
            f"--tokens-by continued-bpe goes on from the source's merges, but its tokenizer is {description['model']['type']}, which has none;"
            " take auxiliary"
        )
    words = _Words(_pieces(description, sentences), unknown=_UNKNOWN)
    extended = copy.deepcopy(dict(description))
    first_id = next_id(extended)
    name_added_tokens(extended["model"], extended["added_tokens"])
    spelling = spelling_of(extended)
    known, vocabulary = known_bytes(extended, spelling), extended["model"]["vocab"]
    tokens: list[str] = []
    merges: list[tuple[str, str]] = []
    while len(tokens) < num_new:
        pair = words.most_frequent()
        if pair is None:
            raise ValueError(
                f"{num_new} new tokens are wanted, but the text has only {len(tokens)} more pairs of tokens that occur twice;"
                " give more text or ask for fewer"
            )
        token = "".join(pair).removeprefix(_UNKNOWN)
        if token in vocabulary or token in excluded or bytes_of(token, spelling) in known:
            words.skip(pair)
            continue
        vocabulary[token] = first_id + len(tokens)
        known.add(bytes_of(token, spelling))
        tokens.append(token)
        if pair[0] != _UNKNOWN:
            merges.append(pair)
        words.join(pair)
    extended["model"]["merges"] = [list(pair) for pair in (*merge_pairs(extended["model"]), *merges)]
    left = words.tokens()
    return Extension(extended, first_id, tuple(tokens), num_intermediate=sum(token not in left for token in tokens), num_impossible=0)


def _pieces(description: Mapping[str, Any], sentences: Iterable[str]) -> Counter[tuple[str, ...]]:
    """The words of the sentences as the old tokenizer cuts them, with their numbers.

    A letter that it lacks, and would spell in bytes or lose, stands behind the sign for unknown ones, to which it can be joined and nothing else.
    """
    from tokenizers import Tokenizer

    normalizer, cutter = word_cutter(description)
    counts: Counter[str] = Counter()
    for sentence in sentences:
        text = normalizer.normalize_str(sentence) if normalizer is not None else sentence
        counts.update(word for word, _ in cutter.pre_tokenize_str(text))
    model = Tokenizer.from_str(json.dumps(dict(description))).model
    letters = {token for token in description["model"]["vocab"] if len(token) == 1}
    pieces: Counter[tuple[str, ...]] = Counter()
    for word, count in counts.items():
        cut: list[str] = []
        for is_known, group in groupby(word, letters.__contains__):
            run = "".join(group)
            cut += [token.value for token in model.tokenize(run)] if is_known else [part for letter in run for part in (_UNKNOWN, letter)]
        pieces[tuple(cut)] += count
    return pieces


class _Words:
    """Words as rows of symbols, and the pairs in them by how often they occur."""

    def __init__(self, counts: Mapping[tuple[str, ...], int], *, unknown: str) -> None:
        self._unknown = unknown
        self._words = [list(word) for word in counts]
        self._counts = list(counts.values())
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._places: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._passed: set[tuple[str, str]] = set()
        for index, word in enumerate(self._words):
            self._count(index, word, 1)
        self._heap = [(-count, pair) for pair, count in self._pairs.items()]
        heapq.heapify(self._heap)

    def most_frequent(self) -> tuple[str, str] | None:
        """The pair that occurs most often, None where none occurs twice."""
        while self._heap:
            count, pair = self._heap[0]
            if -count == self._pairs[pair] and pair not in self._passed:
                return pair if -count >= _FEWEST_COUNTS else None
            heapq.heappop(self._heap)
        return None

    def skip(self, pair: tuple[str, str]) -> None:
        """Never give this pair again."""
        self._passed.add(pair)

    def join(self, pair: tuple[str, str]) -> None:
        """Make one symbol of the pair wherever it stands, from the left as BPE does."""
        changed: set[tuple[str, str]] = set()
        for index in list(self._places[pair]):
            old = self._words[index]
            new: list[str] = []
            place = 0
            while place < len(old):
                is_pair = tuple(old[place : place + 2]) == pair
                new.append("".join(pair).removeprefix(self._unknown) if is_pair else old[place])
                place += 1 + is_pair
            changed |= self._count(index, old, -1) | self._count(index, new, 1)
            self._words[index] = new
        for other in changed:
            if self._pairs[other] > 0:
                heapq.heappush(self._heap, (-self._pairs[other], other))

    def tokens(self) -> set[str]:
        """All symbols that the words are made of now."""
        return {symbol for word in self._words for symbol in word}

    def _count(self, index: int, word: list[str], sign: int) -> set[tuple[str, str]]:
        pairs = set()
        before = ""
        for pair in zip(word, word[1:]):
            is_possible = pair[1] != self._unknown and before != self._unknown
            before = pair[0]
            if not is_possible:
                continue
            self._pairs[pair] += sign * self._counts[index]
            pairs.add(pair)
            if sign > 0:
                self._places[pair].add(index)
            else:
                self._places[pair].discard(index)
        return pairs
