"""Vocabulary pruning: the tokens that a text uses, and those needed to reach them and to spell any other text."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from data_prep.tokenizers.extension import joining_steps, merge_pairs, name_added_tokens, vocabulary_of
from data_prep.tokenizers.token_bytes import BYTE_TOKEN, byte_level_alphabet, spelling_of


@dataclass(frozen=True)
class Pruning:
    """A tokenizer without the tokens that are not needed.

    Attributes:
        description: content of its tokenizer.json.
        old_ids: for each id the one that the token had, in ascending order.
        num_needed: of the kept tokens those that are too rare in the text, but steps or letters of others.
    """

    description: dict[str, Any]
    old_ids: tuple[int, ...]
    num_needed: int

    @property
    def new_ids(self) -> dict[int, int]:
        """Old id -> new id."""
        return {old: new for new, old in enumerate(self.old_ids)}


def prune_tokenizer(description: Mapping[str, Any], counts: Mapping[int, int], *, min_count: int) -> Pruning:
    """Keep the tokens that occur so often in a text, and what they need; ids close up in their old order.

    Kept besides: added tokens, the unknown token, all bytes, the single characters of every token that occurs, and for BPE every
    token on the way to a kept one.  Merges whose parts or result are gone go too.  So each kept token is reached as before, and
    with a minimal count of 1 the text is cut as before.

    Args:
        description: content of a tokenizer.json that names every added token.
        counts: id -> how often the text has the token.

    Raises:
        ValueError: if the tokenizer is of an unknown kind.
    """
    pruned = copy.deepcopy(dict(description))
    spelling = spelling_of(pruned)
    model = pruned["model"]
    name_added_tokens(model, pruned["added_tokens"])
    vocabulary = vocabulary_of(model)
    added = {entry["content"] for entry in pruned["added_tokens"]}
    seen = [token for token, i in vocabulary.items() if counts.get(i, 0) and token not in added]
    frequent = [token for token in seen if counts[vocabulary[token]] >= min_count]
    kept = {*added, *frequent, *_letters(seen, spelling.continuing_prefix), *_unknown(model)}
    kept.update(token for token in vocabulary if spelling.byte_tokens and BYTE_TOKEN.fullmatch(token))
    if spelling.form == "byte-level":
        kept.update(byte_level_alphabet())
    if model["type"] == "BPE":
        ranks = {pair: rank for rank, pair in enumerate(merge_pairs(model))}
        kept.update(step for token in frequent for step in joining_steps(token, ranks))
    kept &= vocabulary.keys()
    old_ids = tuple(sorted(vocabulary[token] for token in kept))
    result = Pruning(pruned, old_ids, len(kept) - len(added & vocabulary.keys()) - len(frequent))
    _drop_others(model, kept, result.new_ids)
    _renumber(pruned, result.new_ids)
    return result


def _letters(tokens: Iterable[str], continuing_prefix: str) -> set[str]:
    """The single characters of tokens, as they begin and as they continue a word."""
    characters = {character for token in tokens for character in token}
    return characters | ({continuing_prefix + character for character in characters} if continuing_prefix else set())


def _unknown(model: Mapping[str, Any]) -> set[str]:
    if model["type"] == "Unigram":
        return set() if model.get("unk_id") is None else {model["vocab"][model["unk_id"]][0]}
    return {model["unk_token"]} if model.get("unk_token") else set()


def _drop_others(model: dict[str, Any], kept: set[str], new_ids: Mapping[int, int]) -> None:
    if model["type"] == "Unigram":
        if model.get("unk_id") is not None:
            model["unk_id"] = new_ids[model["unk_id"]]
        model["vocab"] = [entry for entry in model["vocab"] if entry[0] in kept]
        return
    model["vocab"] = {token: new_ids[i] for token, i in model["vocab"].items() if token in kept}
    if model["type"] == "BPE":
        pairs = merge_pairs(model)
        model["merges"] = [merge for merge, (first, second) in zip(model["merges"], pairs) if {first, second, first + second} <= kept]


def _renumber(description: dict[str, Any], new_ids: Mapping[int, int]) -> None:
    """Give added tokens and what is put around a text their new ids."""
    for entry in description["added_tokens"]:
        entry["id"] = new_ids[entry["id"]]
    processors = [description.get("post_processor") or {}]
    for processor in processors:
        processors += processor.get("processors", ())
        for role in ("cls", "sep"):
            if role in processor:
                token, old_id = processor[role]
                processor[role] = [token, new_ids[old_id]]
        for entry in (processor.get("special_tokens") or {}).values():
            entry["ids"] = [new_ids[old_id] for old_id in entry["ids"]]
