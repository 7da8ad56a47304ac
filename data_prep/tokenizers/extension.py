"""Vocabulary extension: new tokens are merged into a tokenizer's vocabulary and rules so that each is reachable and old ids stay.

The candidates are the tokens of an auxiliary tokenizer, as bytes.  What is added depends on how the model cuts a text: BPE needs a
merge for every step to a token, appended after the old ones, so that old text is cut as before wherever no new token applies;
Unigram needs a score above that of every other way to write the token; WordPiece takes the longest token and needs nothing more.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from data_prep.tokenizers.token_bytes import BYTE_TOKEN, Spelling, bytes_of, spell, spelling_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_UNKNOWN_PENALTY = 10.0  # of the `tokenizers` library, below the lowest score of a piece
_SCORE_MARGIN = 1e-3
_NO_SCORE = float("-inf")
_NEVER = sys.maxsize
_DIGIT = re.compile(r"[0-9]")
_NUMBER = re.compile(r".[0-9]+", re.DOTALL)  # of several digits, or behind a mark for a space


@dataclass(frozen=True)
class Candidate:
    """A token of the auxiliary tokenizer: the bytes it stands for, and its log probability where that is known."""

    data: bytes
    score: float | None = None


@dataclass(frozen=True)
class Extension:
    """A tokenizer with new tokens.

    Attributes:
        description: content of its tokenizer.json.
        first_id: id of the first new token; the others follow without gaps.
        tokens: the new tokens as they are spelled, in the order of their ids.
        num_intermediate: of these, tokens that no candidate is and that merges need on their way to one.
        num_impossible: candidates that the old tokenizer has no way to write, or cuts before it looks for tokens.
    """

    description: dict[str, Any]
    first_id: int
    tokens: tuple[str, ...]
    num_intermediate: int
    num_impossible: int


def extend_tokenizer(
    description: Mapping[str, Any],
    candidates: Iterable[Candidate],
    num_new: int | None,
    *,
    fits: Callable[[bytes], bool] | None = None,
    excluded: Collection[str] = (),
) -> Extension:
    """Add the first candidates that the tokenizer lacks, and what they need to be reached, until there are so many new tokens.

    Args:
        description: content of a tokenizer.json that names every added token.
        candidates: from the most to the least wanted.
        num_new: new tokens in all; None takes every candidate.
        fits: whether bytes can be one token where the text has been cut into words, see `fits_a_word`.
        excluded: tokens that are not added, not even on the way to another.

    Raises:
        ValueError: if the candidates give fewer new tokens, or if the tokenizer is of an unknown kind.
    """
    extended = copy.deepcopy(dict(description))
    spelling = spelling_of(extended)
    first_id = next_id(extended)
    name_added_tokens(extended["model"], extended["added_tokens"])
    known = known_bytes(extended, spelling)
    wanted, num_unspellable = _spelled(candidates, known, spelling, taken=vocabulary_of(extended["model"]))
    unfit = {token for token in wanted if fits is not None and not fits(bytes_of(token, spelling))}
    wanted = {token: score for token, score in wanted.items() if token not in unfit and token not in excluded}
    rules = _RULES[extended["model"]["type"]](extended["model"], wanted)
    tokens: list[str] = []
    for token in wanted:
        if num_new is not None and len(tokens) == num_new:
            break
        steps = rules.steps_to(token)
        if any(step in excluded for step in steps):
            continue
        if num_new is None or len(tokens) + len(steps) <= num_new:
            rules.add(steps, first_id + len(tokens))
            tokens.extend(steps)
    if num_new is not None and len(tokens) < num_new:
        raise ValueError(
            f"{num_new} new tokens are wanted, but the auxiliary tokenizer has only {len(tokens)} that the source tokenizer lacks;"
            " give more text or ask for fewer"
        )
    rules.finish()
    num_intermediate = sum(token not in wanted for token in tokens)
    return Extension(extended, first_id, tuple(tokens), num_intermediate, num_unspellable + len(unfit))


def candidates_of(description: Mapping[str, Any]) -> list[Candidate]:
    """The tokens of text of a tokenizer as candidates, from the most to the least wanted.

    BPE: in the order of their merges, which is that of their usefulness in the text it was trained on, then single characters.
    Unigram: by score.  WordPiece: by id, single characters last.  Added tokens of text follow.
    """
    spelling = spelling_of(dict(description))
    model = description["model"]
    added = {entry["content"] for entry in description["added_tokens"]}
    if model["type"] == "Unigram":
        scored = sorted(
            ((piece, score) for i, (piece, score) in enumerate(model["vocab"]) if i != model.get("unk_id")), key=lambda p: -p[1]
        )
    else:
        ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
        if model["type"] == "BPE":
            merged = dict.fromkeys(first + second for first, second in merge_pairs(model))
            ordered = [token for token in (*merged, *(t for t in ordered if t not in merged)) if token in model["vocab"]]
        else:
            ordered.sort(key=lambda token: len(token.removeprefix(spelling.continuing_prefix)) == 1)
        scored = [(token, None) for token in ordered if token != model.get("unk_token")]
    added_texts = [Candidate(entry["content"].encode()) for entry in description["added_tokens"] if not entry["special"]]
    is_byte = (lambda token: BYTE_TOKEN.fullmatch(token) is not None) if spelling.byte_tokens else (lambda token: False)
    tokens = [Candidate(bytes_of(token, spelling), score) for token, score in scored if token not in added and not is_byte(token)]
    return tokens + added_texts


def merge_pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pairs that a BPE model joins, first to last; files from before tokenizers 0.20 write them as one string with a space between."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(first, second) for first, second in pairs]


def vocabulary_of(model: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id of a tokenizer's model."""
    if model["type"] == "Unigram":
        return {piece: i for i, (piece, _) in enumerate(model["vocab"])}
    return dict(model["vocab"])


def next_id(description: Mapping[str, Any]) -> int:
    """The lowest id above all that are taken."""
    ids = (*vocabulary_of(description["model"]).values(), *(entry["id"] for entry in description["added_tokens"]))
    return max(ids, default=-1) + 1


def known_bytes(description: Mapping[str, Any], spelling: Spelling) -> set[bytes]:
    """The bytes that a tokenizer has a token of text for; `<0xXX>` is none."""
    added = {entry["content"]: entry["special"] for entry in description["added_tokens"]}
    known = {content.encode() for content, is_special in added.items() if not is_special}
    for token in vocabulary_of(description["model"]):
        if token not in added and not (spelling.byte_tokens and BYTE_TOKEN.fullmatch(token)):
            known.add(bytes_of(token, spelling))
    return known


def joined(symbols: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """What BPE makes of some symbols: the pair of the lowest rank is joined, the leftmost first, until no pair can be."""
    *_, last = _joinings(symbols, ranks)
    return last


def joining_steps(token: str, ranks: Mapping[tuple[str, str], int]) -> set[str]:
    """All tokens that BPE meets on its way from the characters of a token to the whole."""
    return {symbol for symbols in _joinings(token, ranks) for symbol in symbols}


def _joinings(symbols: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> Iterator[list[str]]:
    """The symbols before the first joining and after each."""
    symbols = list(symbols)
    while True:
        yield symbols
        pair_ranks = [ranks.get(pair, _NEVER) for pair in zip(symbols, symbols[1:])]
        lowest = min(pair_ranks, default=_NEVER)
        if lowest == _NEVER:
            return
        place = pair_ranks.index(lowest)
        symbols = [*symbols[:place], symbols[place] + symbols[place + 1], *symbols[place + 2 :]]


def keeps_digits_apart(description: Mapping[str, Any]) -> bool:
    """Whether each digit of a number is a token, and none has the space before it: SentencePiece's `split_digits` (Llama 2, Mistral, Gemma)."""
    added = {entry["content"] for entry in description["added_tokens"]}
    return not any(_NUMBER.fullmatch(token) and token not in added for token in vocabulary_of(description["model"]))


def fits_a_word(tokenizer: Tokenizer) -> Callable[[bytes], bool]:
    """Tell of some bytes whether a tokenizer's pre-tokenizer leaves them whole, so that they can become one token.

    A digit beside anything else does not fit where the tokenizer keeps digits apart: numbers would be cut in another way, in every language.
    Bytes that are not whole characters are given the benefit of the doubt.
    """
    has_digits_apart = keeps_digits_apart(json.loads(tokenizer.to_str()))

    def fits(data: bytes) -> bool:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return True
        if has_digits_apart and len(text) > 1 and _DIGIT.search(text):
            return False
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        return tokenizer.pre_tokenizer is None or len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1

    return fits


def _spelled(
    candidates: Iterable[Candidate], known: set[bytes], spelling: Spelling, *, taken: Mapping[str, int]
) -> tuple[dict[str, float | None], int]:
    """Spelling -> score of the candidates that are not known, in order, and the number of those that cannot be spelled."""
    wanted: dict[str, float | None] = {}
    num_unspellable = 0
    for candidate in candidates:
        if not candidate.data or candidate.data in known:
            continue
        token = spell(candidate.data, spelling)
        if token is None:
            num_unspellable += 1
        elif token not in taken:
            wanted.setdefault(token, candidate.score)
    return wanted, num_unspellable


def name_added_tokens(model: dict[str, Any], added_tokens: Sequence[Mapping[str, Any]]) -> None:
    """Put added tokens into the model's own vocabulary.

    The library numbers those that are not in it anew, from the size of the vocabulary on: with new tokens they would move.
    """
    known = vocabulary_of(model)
    for entry in sorted(added_tokens, key=lambda entry: entry["id"]):
        if entry["content"] in known:
            continue
        if model["type"] != "Unigram":
            model["vocab"][entry["content"]] = entry["id"]
        elif entry["id"] == len(model["vocab"]):
            model["vocab"].append([entry["content"], 0.0])
        else:
            raise ValueError(
                f"the added token {entry['content']!r} has id {entry['id']}, but the pieces before it end at {len(model['vocab']) - 1};"
                " a Unigram tokenizer with gaps cannot be extended"
            )


class _Rules(Protocol):
    """How a model comes to a token."""

    def steps_to(self, token: str) -> list[str]:
        """The tokens that are missing for the model to reach a token, that one last; empty if it is reached as it is."""

    def add(self, tokens: Sequence[str], first_id: int) -> None:
        """Add the steps to the last token asked for."""

    def finish(self) -> None:
        """Write what all new tokens together decide."""


class _MergeRules:
    """BPE: a merge for each step."""

    def __init__(self, model: dict[str, Any], wanted: Mapping[str, float | None]) -> None:
        self._model, self._wanted = model, wanted
        self._ranks = {pair: rank for rank, pair in enumerate(merge_pairs(model))}
        self._num_ranks = len(model["merges"])
        self._pairs: list[tuple[str, str]] = []  # to the last token asked for
        self._new_pairs: list[tuple[str, str]] = []

    def steps_to(self, token: str) -> list[str]:
        vocabulary = self._model["vocab"]
        # A character that the vocabulary lacks is a symbol as soon as it is a token.
        steps = [character for character in dict.fromkeys(token) if character not in vocabulary]
        new_ranks: dict[tuple[str, str], int] = {}
        ranks = ChainMap(new_ranks, self._ranks)
        self._pairs = []
        pieces = joined(token, self._ranks)
        while len(pieces) > 1:
            place = min(range(len(pieces) - 1), key=lambda i: (self._cost(pieces[i] + pieces[i + 1], steps), i))
            pair = (pieces[place], pieces[place + 1])
            self._pairs.append(pair)
            new_ranks[pair] = self._num_ranks + len(new_ranks)
            if "".join(pair) not in vocabulary and "".join(pair) not in steps:
                steps.append("".join(pair))
            pieces = joined(token, ranks)
        return steps

    def _cost(self, token: str, steps: Sequence[str]) -> int:
        """A token that is there costs nothing, one that is wanted anyway less than another."""
        return 0 if token in self._model["vocab"] or token in steps else 1 if token in self._wanted else 2

    def add(self, tokens: Sequence[str], first_id: int) -> None:
        self._model["vocab"].update({token: first_id + place for place, token in enumerate(tokens)})
        for pair in self._pairs:
            self._ranks[pair] = self._num_ranks
            self._num_ranks += 1
        self._new_pairs += self._pairs

    def finish(self) -> None:
        merges = self._model["merges"]
        writes_strings = bool(merges) and isinstance(merges[0], str)
        if writes_strings and any(" " in part for pair in self._new_pairs for part in pair):
            merges[:] = [list(pair) for pair in merge_pairs(self._model)]
            writes_strings = False
        merges += [" ".join(pair) if writes_strings else list(pair) for pair in self._new_pairs]


class _ScoreRules:
    """Unigram: a score above that of all other ways to write a token."""

    def __init__(self, model: dict[str, Any], wanted: Mapping[str, float | None]) -> None:
        self._model, self._wanted = model, wanted
        self._scores: dict[str, float] = dict(model["vocab"])
        self._unknown = min(self._scores.values(), default=0.0) - _UNKNOWN_PENALTY
        self._new: list[str] = []

    def steps_to(self, token: str) -> list[str]:
        return [token]

    def add(self, tokens: Sequence[str], first_id: int) -> None:
        assert first_id == len(self._model["vocab"]) + len(self._new)
        self._new.extend(tokens)

    def finish(self) -> None:
        # Short tokens first: their scores decide how else the longer ones can be written.
        for token in self._new:
            score = self._wanted[token]
            self._scores[token] = _NO_SCORE if score is None else score
        for token in sorted(self._new, key=len):
            self._scores[token] = max(self._scores[token], self._best_otherwise(token) + _SCORE_MARGIN)
        self._model["vocab"].extend([token, self._scores[token]] for token in self._new)

    def _best_otherwise(self, token: str) -> float:
        best = [0.0] + [_NO_SCORE] * len(token)
        for end in range(1, len(token) + 1):
            for start in range(end):
                piece = token[start:end]
                if piece != token:
                    score = self._scores.get(piece, self._unknown if len(piece) == 1 else _NO_SCORE)
                    best[end] = max(best[end], best[start] + score)
        return best[-1] if len(token) > 1 else self._unknown


class _LongestMatchRules:
    """WordPiece: the longest token that fits."""

    def __init__(self, model: dict[str, Any], wanted: Mapping[str, float | None]) -> None:
        self._model = model

    def steps_to(self, token: str) -> list[str]:
        return [token]

    def add(self, tokens: Sequence[str], first_id: int) -> None:
        self._model["vocab"].update({token: first_id + place for place, token in enumerate(tokens)})

    def finish(self) -> None:
        pass


_RULES: dict[str, Callable[[dict[str, Any], Mapping[str, float | None]], _Rules]] = {
    "BPE": _MergeRules,
    "Unigram": _ScoreRules,
    "WordPiece": _LongestMatchRules,
}
