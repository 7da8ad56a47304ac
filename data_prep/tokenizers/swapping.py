"""Token exchange: new tokens take the ids of removed ones, so no other id changes and the table keeps its size.

A token goes only together with all that merges make of it, so that whatever text does not end in one that goes is cut as before: BPE would
have met it on the way, Unigram and WordPiece choose among pieces of which none of that text's is gone.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import regex

from data_prep.tokenizers.extension import Extension, merge_pairs, name_added_tokens, vocabulary_of
from data_prep.tokenizers.token_bytes import BYTE_TOKEN, byte_level_alphabet, bytes_of, spelling_of


@dataclass(frozen=True)
class Removal:
    """A tokenizer without some tokens, whose ids are free.

    Attributes:
        description: content of its tokenizer.json; the ids of the others are as they were, but for Unigram, which numbers by place.
        free: id -> the token that had it.
    """

    description: dict[str, Any]
    free: Mapping[int, str]


def removable_tokens(description: Mapping[str, Any], *, wanted: Callable[[str], bool] = lambda text: True) -> dict[str, set[str]]:
    """Token -> the tokens that merges make of it, of those that may go: no added token, byte, single character or unknown token.

    Args:
        wanted: whether a token's text is among what may go, of bytes that are not whole characters never asked.
    """
    spelling = spelling_of(dict(description))
    model = description["model"]
    kept = {entry["content"] for entry in description["added_tokens"]} | {str(model.get("unk_token"))}
    if model["type"] == "Unigram" and model.get("unk_id") is not None:
        kept.add(model["vocab"][model["unk_id"]][0])
    if spelling.form == "byte-level":
        kept.update(byte_level_alphabet())
    made_of: dict[str, set[str]] = {token: set() for token in vocabulary_of(model)}
    if model["type"] == "BPE":
        for first, second in merge_pairs(model):
            for part in (first, second):
                made_of[part].add(first + second)
    found = {}
    for token, makes in made_of.items():
        text = _text(bytes_of(token, spelling))
        is_long = len(token.removeprefix(spelling.continuing_prefix)) > 1
        if token not in kept and is_long and not BYTE_TOKEN.fullmatch(token) and text is not None and wanted(text):
            found[token] = makes
    return found


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def of_scripts(scripts: Collection[str]) -> Callable[[str], bool]:
    """Whether a text has letters, all of some scripts (names of Unicode: Cyrillic, Han, or ISO 15924: Cyrl, Hani).

    Raises:
        ValueError: if a name is none.
    """
    try:
        pattern = regex.compile("[" + "".join(rf"\p{{Script={script}}}" for script in scripts) + "]")
    except regex.error as error:
        raise ValueError(
            f"--swap-script {' '.join(scripts)}: {error}; give names of Unicode such as Cyrillic, Han, Hangul, Arabic"
        ) from None

    def wanted(text: str) -> bool:
        letters = [letter for letter in text if letter.isalpha()]
        return bool(letters) and all(pattern.match(letter) for letter in letters)

    return wanted


def chosen_tokens(removable: dict[str, set[str]], counts: Mapping[str, float], number: int) -> list[str]:
    """The least counted tokens whose makings go before them.

    Args:
        counts: token -> how often it is used; 0 where it is not listed.

    Raises:
        ValueError: if fewer can go.
    """
    needed_by = {token: set(makes) for token, makes in removable.items()}
    parts: dict[str, list[str]] = {}
    for token, makes in needed_by.items():
        for made in makes:
            parts.setdefault(made, []).append(token)
    order = {
        token: place for place, token in enumerate(reversed(list(removable)))
    }  # of equal counts the last, which are the longest, first
    ready = [(counts.get(token, 0), order[token], token) for token, makes in needed_by.items() if not makes]
    heapq.heapify(ready)
    chosen: list[str] = []
    while ready and len(chosen) < number:
        token = heapq.heappop(ready)[2]
        chosen.append(token)
        for part in parts.get(token, ()):
            needed_by[part].discard(token)
            if not needed_by[part]:
                heapq.heappush(ready, (counts.get(part, 0), order[part], part))
    if len(chosen) < number:
        raise ValueError(f"{number:,} tokens are to go, but only {len(chosen):,} can without taking others with them; ask for fewer")
    return chosen


def without(description: Mapping[str, Any], tokens: Collection[str]) -> Removal:
    """The tokenizer without some tokens and the merges that lead to or from them."""
    left = copy.deepcopy(dict(description))
    model = left["model"]
    name_added_tokens(model, left["added_tokens"])
    gone = set(tokens)
    free = {i: token for token, i in vocabulary_of(model).items() if token in gone}
    if model["type"] == "Unigram":
        before = sum(i < model["unk_id"] for i in free) if model.get("unk_id") is not None else 0
        model["vocab"] = [entry for entry in model["vocab"] if entry[0] not in gone]
        if model.get("unk_id") is not None:
            model["unk_id"] -= before
        return Removal(left, dict(sorted(free.items())))
    model["vocab"] = {token: i for token, i in model["vocab"].items() if token not in gone}
    if model["type"] == "BPE":
        pairs = merge_pairs(model)
        model["merges"] = [merge for merge, (a, b) in zip(model["merges"], pairs, strict=True) if not gone & {a, b, a + b}]
    return Removal(left, dict(sorted(free.items())))


def under_free_ids(description: Mapping[str, Any], removal: Removal, extension: Extension) -> dict[str, Any]:
    """The tokenizer with the extension's tokens under the ids that are free, in their order.

    Args:
        description: as it was before any token went.
        extension: of the removal's description, by as many tokens as went.
    """
    assert len(extension.tokens) == len(removal.free)
    swapped = copy.deepcopy(extension.description)
    model, new_ids = swapped["model"], dict(zip(extension.tokens, removal.free, strict=True))
    if model["type"] == "Unigram":
        scores = {entry[0]: entry for entry in model["vocab"]}
        before = copy.deepcopy(dict(description))
        name_added_tokens(before["model"], before["added_tokens"])
        at = {i: token for token, i in new_ids.items()}
        model["vocab"] = [scores[at[i]] if i in at else entry for i, entry in enumerate(before["model"]["vocab"])]
        model["unk_id"] = before["model"].get("unk_id")
        return swapped
    vocabulary = {token: new_ids.get(token, i) for token, i in model["vocab"].items()}
    model["vocab"] = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    return swapped
